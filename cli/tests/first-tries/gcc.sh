# needs: gcc g++ make
# Programs are compiled, several at once, and run. $1 is an empty folder.
cd "$1" || exit 1
printf '#include <stdio.h>\nint main(void) { puts("hello"); return 3; }\n' >hello.c
gcc -O2 -Wall -o hello hello.c && ./hello
echo "status $?"
cat >threads.cc <<'END'
#include <iostream>
#include <thread>
#include <vector>
int main() {
	std::vector<int> v{1, 2};
	std::thread([&] { v.push_back(3); }).join();
	for (int i : v)
		std::cout << i << "\n";
	try { throw 4; } catch (int i) { std::cout << i << "\n"; }
}
END
g++ -g -o threads threads.cc && ./threads
for i in 1 2 3 4 5 6; do echo "int f$i(void) { return $i; }" >f$i.c; done
printf 'int f1(void), f6(void);\nint main(void) { return 10 * f1() + f6(); }\n' >main.c
printf 'all: main\nmain: main.o f1.o f2.o f3.o f4.o f5.o f6.o\n' >Makefile
make -s -j4 all && ./main
echo "status $?"
