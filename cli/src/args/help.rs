//! Text after the options in each command's `--help`: examples and exit status.

/// Text for `freehold run`.
pub const RUN_HELP: &str = "\
Examples:
  freehold run -- busybox echo hello
  freehold run -m 512M --cpus 2 -- busybox ash          an interactive shell in the VM
  freehold run -v ./script.sh:/script.sh -- busybox ash /script.sh
  freehold run --disk disk.img -- busybox dd if=/dev/vda bs=1M count=1
  freehold run -m 128M --memory-max 2G -- PROGRAM       starts small, grows when PROGRAM needs it
  freehold run -m 128M --swap 1G -- PROGRAM             what PROGRAM does not use goes to a disk that the VM swaps to
  freehold run -p 8080:80 -- busybox httpd -f -p 80     http://localhost:8080 is the VM's port 80
  freehold run --net user -- git clone https://...      reaches whatever this user reaches
  freehold run --user 1000 -- busybox id                as a user without root's rights
  freehold run --image app.tar                          a container image: docker save APP -o app.tar makes the file
  freehold run --image app.tar --entrypoint sh -- -c 'id; env'
  freehold run --kernel linux -- busybox echo hello     the same VM on a stock Linux kernel
  freehold run --node mem=256M,cpus=0 --node mem=256M,cpus=1 --distance 0,1,21 --cpus 2 -- PROGRAM

Exit status: the program's own; 128+N when signal N ended it; 124 time-out; 125 an error of freehold's own (output that could not be
written among them), or of its kernel, where the audit of all frames at the program's end does not balance; 126 PROGRAM cannot be executed;
127 there is no such PROGRAM; 255 the guest died (the cause and a backtrace are printed). The JSON's `reason` tells 125 to 127 of freehold's
own from the program's.

SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 that reach freehold reach the program; SIGTSTP stops the VM until SIGCONT. A program that ignores them is ended by a second SIGINT, SIGQUIT or SIGTERM 2 s after the first
or later, or by the third; on a terminal, where every key is the program's, by Ctrl-] three times within a second.

Files: the VM sees /usr and some settings of /etc; with --sealed the program and the libraries that it names. What else it opens by name
(data files, plug-ins) is added with -a or -v, or with --files-from, once a run with --learn has written it down; the closing report names the files
that the program looked for in vain.";

/// Text for `freehold scope`.
pub const SCOPE_HELP: &str = "\
Examples:
  freehold scope --html report.html -- busybox ash -c 'ls -R / | wc -l'
  freehold scope --near-cache 32M -m 256M --html report.html -- ./program
  freehold scope --kernel linux --numa 2 --cpus 2 --model locality -- ./program     who reads whose memory
  freehold scope --tlb zen4 --model tlb --json tlb.json -- ./program
  freehold scope --damo heat.damo -- ./program && damo report heatmap --input heat.damo
  freehold scope -- busybox ash -c 'prepare; phase load; work; phase done'          a row for each phase
  freehold scope --coverage code.json -- ./program                                  which of the kernel's code runs at all

The VM runs emulated under a QEMU plugin that sees every instruction and every access of the guest, kernel and programs
apart, and feeds models of caches, memory-side caches (--near-cache) and TLBs. It is a few times slower than a plain run. The
command `phase NAME` is in the guest's PATH: from there on, counts go to a row of that name. FREEHOLD_QEMU=FILE names another QEMU;
freehold doctor says how blocks are counted with it.

Exit status: that of freehold run; 125 also when the kernel broke a rule of memory isolation (the oracle; freehold's own kernel).";

/// Text for `freehold coverage`.
pub const COVERAGE_HELP: &str = "\
Examples:
  freehold scope --coverage code.json -- busybox ls     adds a run to code.json
  freehold coverage code.json                           by module, and the largest functions that never ran
  freehold coverage code.json --html code.html          every function that did not run whole
  freehold coverage a.json b.json --least 60            both together: do they reach 60%?
  FREEHOLD_COVERAGE=code.json sh tests.sh               every freehold run on our own kernel adds itself

A byte counts once a block of code that holds it was executed, on any CPU. All are bytes of functions in the kernel's executable
sections: padding between functions is none's. A record is of one kernel file; runs may be added at the same time.

Exit status: 0; 1 less ran than --least asks for; 125 an error of freehold's own.";

/// Text for `freehold bench`.
pub const BENCH_HELP: &str = "\
Examples:
  freehold bench                                        every row: Freehold, a lean Linux, Linux as Debian boots it
  freehold bench 'cow*' fork-exec                       some rows; freehold bench --list names all
  freehold bench --against-append page_alloc.shuffle=0  one kernel with two command lines
  freehold bench --against ./other-kernel --html out.html
  freehold bench --csv bench.csv 'cow*'                 for a spreadsheet: a line for each row and side
  freehold bench --wall --cpus 2 --runs 10              the host's time, by 1 worker and by 2

Guest instructions (--icount, the default) do not depend on how busy the host is, and two runs agree to the instruction. The
host's time (--wall) is shown with its spread. A ratio's 95% interval that holds 1 is called not distinguishable.

Exit status: 0; 1 a row failed on a side (named on stderr, with what the guest printed); 124 a guest did not end in time;
125 an error of freehold's own, a kernel that does not boot or whose frames do not balance among them; 255 a guest died.
128+N signal N (Ctrl-C: 2) ended the measurement: the report and the files have the rows that were finished, and are marked as partial.";

/// Text for `freehold sweep`.
pub const SWEEP_HELP: &str = "\
Examples:
  freehold sweep pages.toml --list                      names the runs with their command lines
  freehold sweep pages.toml --html pages.html           makes them, as many at a time as there are CPUs, in the folder pages
  freehold sweep pages.toml                             again, after it was killed: makes the runs that are missing
  freehold sweep pages.toml --csv pages.csv --merge     makes none: merges what is there
  freehold sweep pages.toml --runner slurm --jobs 64    a job array; kubernetes and ray write their files likewise

The file, in TOML: programs are needed, all else may be left out.
  options = [\"--report\", \"never\"]                   of every run
  seeds = [1, 2, 3]                                     counts instructions (--icount --seed N)
  [kernels]     ours = \"freehold\", theirs = \"linux\"   each section on lines of its own
  [parameters]  plain = \"\", strict = \"xpfo=strict\"
  [programs]    true = [\"busybox\", \"true\"]
  [machines]    small = [\"-m\", \"128M\"]

A run is made once its file is in the folder. Results whose end was the host's doing (a signal to freehold, QEMU) are not kept: the run
is made again.

Exit status: 0 all runs are made, and each ended by its program's exit;
1 some are missing, or ended otherwise; 125 an error of freehold's own;
128+N signal N ended the sweep: the runs that were made are kept.";

/// Text for `freehold diff`.
pub const DIFF_HELP: &str = "\
Examples:
  freehold bench --json old.json; git switch new; make build; freehold bench --json new.json
  freehold diff old.json new.json                       what an operation costs, with intervals and a verdict
  freehold diff --threshold 5 old.json new.json         a row that costs up to 5% more is no regression
  freehold diff old.json new.json --csv diff.csv        for a spreadsheet
  freehold scope --json - -- ./program | freehold diff before.json - --json diff.json

Both files are of one command: run, bench, lab (of one experiment) or scope. What differs and makes the comparison unfair is said first.
Of bench the first side of each file is compared. Figures of the host's time are shown, and judged where there are three runs or more.

Exit status: 0 no regression; 1 a regression: a row of bench costs more, beyond its 95% interval and by more than --threshold, or fails;
a program ended in another way than in A; an audit found a defect that is not in A;
125 an error, for example files that cannot be compared.";

/// Text for `freehold lab`.
pub const LAB_HELP: &str = "\
Examples:
  freehold lab                                          names the experiments and their questions
  freehold lab costs --html costs.html                  the answer, as a page to look at
  freehold lab costs --quick                            a short run: does it work here?
  freehold lab near-cache --boots 10 --html near.html   more boots: how far are they from each other?
  freehold lab slowdown                                 what freehold scope costs, with this QEMU
  FREEHOLD_QEMU=FILE freehold lab slowdown              … and with another

Exit status: 0; 1 a figure misses its goal, or a row failed; 125 an error of freehold's own; 128+N signal N (Ctrl-C: 2) ended
the experiment: the report and the files have what was finished, and are marked as partial.";

/// Text for `freehold owns`.
pub const OWNS_HELP: &str = "\
Examples:
  freehold run --control vm.sock -- busybox sleep 60 &
  freehold owns --vm vm.sock 1                          what frames process 1 of the VM maps
  freehold owns --vm vm.sock 1:0x401000                 whose the frame behind this address of process 1 is
  freehold owns --vm vm.sock frame:499                  whose frame number 499 is
  freehold owns --vm vm.sock 0x1f3000 --json -          the frame at this address of the VM's memory, for machines
  freehold run --owns 2 --json run.json -- busybox ls   asks when the program, process 2, ends
  freehold owns --record run.json 2                     … and this shows the answer again

The answer is one sentence: the node; the owner, or the file and the place in it; the processes that map the frame, and where; whether
the kernel's own map contains it; mappings, references of the kernel, and pins. Programs run on meanwhile.

Exit status: 0; 125 nothing is there, or the VM did not answer.";

/// Text for `freehold completion`.
pub const COMPLETION_HELP: &str = "\
Examples:
  eval \"$(freehold completion bash)\"                   for this shell; make install does it for all
  freehold completion zsh > ~/.zfunc/_freehold          in a folder of fpath

The script knows the subcommands, their options, the rows of bench, the names of labs, the models of scope, and programs.

Exit status: 0; 125 an error of freehold's own.";

/// Text for `freehold man`.
pub const MAN_HELP: &str = "\
Examples:
  freehold man run | man -l -                           shows a page that is not installed
  freehold man > /usr/local/share/man/man1/freehold.1   the page of the whole command

Exit status: 0; 125 an error of freehold's own.";

/// Text for `freehold doctor`.
pub const DOCTOR_HELP: &str = "\
Exit status: 0 freehold run can work; 125 it cannot, and a line marked BAD says why.";
