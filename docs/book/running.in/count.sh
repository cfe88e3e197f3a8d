echo "lines: $(wc -l < /tmp/poem)"
