# needs: go
# Compiles a program together with the libraries that it uses. $1 is an empty folder.
cd "$1" || exit 1
export HOME=$1 GOFLAGS=-mod=mod CGO_ENABLED=0
printf 'module try\ngo 1.20\n' >go.mod
printf 'package main\nimport "fmt"\nfunc main() { fmt.Println("hello") }\n' >main.go
go build -o try . && ./try
echo "status $?"
