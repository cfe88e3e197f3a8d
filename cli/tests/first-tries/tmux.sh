# needs: tmux bash
# A terminal in a terminal: a shell, its screen, two panes. $1 is an empty folder.
cd "$1" || exit 1
export TERM=xterm LC_ALL=C.UTF-8
t() { tmux -f /dev/null -S "$PWD/socket" "$@"; }
t new-session -d -x 80 -y 24 'PS1= exec bash --norc --noediting'
t send-keys 'stty -echo; clear; echo $((6 * 7)); tput cols; seq 3; echo "the end"' Enter
until t capture-pane -p | grep -qx 'the end'; do sleep 0.2; done
t capture-pane -p | grep -v '^$' | tail -n 6
t split-window -h 'exec sleep 1000'
t list-panes -F '#{pane_width}x#{pane_height}'
t resize-pane -L 5
t list-panes -F '#{pane_width}x#{pane_height}'
t kill-server
echo "status $?"
