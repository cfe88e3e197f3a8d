# Accesses to user memory. Each instruction that may fault has an entry in .ex_table: where it is,
# where to go on, and whether the fault may be served (1) or ends the access at once (0). All fields
# are relative to themselves. Between stac and clac nothing but the access happens; trap entry
# clears AC for handlers, iret restores it. Where user memory is read a fence comes first: the
# caller's check of the address is done before the access begins, so that no prediction of it reads
# the kernel's memory.

.macro may_fault from, to, serve
    .pushsection .ex_table, "a"
    .balign 4
    .long \from - .
    .long \to - .
    .long \serve
    .popsection
.endm

# copy: rdi = to, rsi = from, rdx = bytes; rax = bytes NOT copied. Words first (TCG counts each step
# of a repeated move as an instruction); where a word faults, its bytes are tried one by one, so
# that the last accessible byte is copied. Where bytes are moved as fast, they are moved at once.
.macro copy name, serve
    .global \name
\name:
    stac
    lfence
9:  mov rcx, rdx
    shr rcx, 3
10: rep movsq
    mov ecx, edx
    and ecx, 7
11: rep movsb
    alternative 9b, 11b, {fast_strings}, "mov rcx, rdx"
    clac
    mov rax, rcx
    ret
12: and edx, 7
    lea rcx, [rcx * 8 + rdx]
    jmp 11b
13: clac
    mov rax, rcx
    ret
    may_fault 10b, 12b, \serve
    may_fault 11b, 13b, \serve
.endm

# zero: rdi = to, rsi = bytes; rax = bytes NOT written.
.macro zero name, serve
    .global \name
\name:
    mov rdx, rsi
    stac
    xor eax, eax
9:  mov rcx, rdx
    shr rcx, 3
10: rep stosq
    mov ecx, edx
    and ecx, 7
11: rep stosb
    alternative 9b, 11b, {fast_strings}, "mov rcx, rdx"
    clac
    mov rax, rcx
    ret
12: and edx, 7
    lea rcx, [rcx * 8 + rdx]
    jmp 11b
13: clac
    mov rax, rcx
    ret
    may_fault 10b, 12b, \serve
    may_fault 11b, 13b, \serve
.endm

# Single words: the value in rax, 0 in rdx if it worked and 1 if not.
.macro load name, register, serve
    .global \name
\name:
    xor edx, edx
    stac
    lfence
10: mov \register, [rdi]
    clac
    ret
11: clac
    xor eax, eax
    mov edx, 1
    ret
    may_fault 10b, 11b, \serve
.endm

.macro store name, register, serve
    .global \name
\name:
    xor eax, eax
    stac
10: mov [rdi], \register
    clac
    ret
11: clac
    mov eax, 1
    ret
    may_fault 10b, 11b, \serve
.endm

# compare and exchange: rdi = address, esi = expected, edx = new; eax = what was there, edx = 1 if
# it faulted.
.macro exchange name, serve
    .global \name
\name:
    mov eax, esi
    stac
    lfence
10: lock cmpxchg [rdi], edx
    clac
    xor edx, edx
    ret
11: clac
    xor eax, eax
    mov edx, 1
    ret
    may_fault 10b, 11b, \serve
.endm

.text
# Outside of these two, no instruction of the kernel runs with AC set: `freehold scope` judges it.
.global user_copies_start
user_copies_start:
copy user_copy_serve, 1
copy user_copy_never, 0
zero user_zero_serve, 1
zero user_zero_never, 0
load user_load32_serve, eax, 1
load user_load32_never, eax, 0
load user_load64_serve, rax, 1
load user_load64_never, rax, 0
store user_store16_serve, si, 1
store user_store16_never, si, 0
store user_store32_serve, esi, 1
store user_store32_never, esi, 0
store user_store64_serve, rsi, 1
store user_store64_never, rsi, 0
exchange user_exchange_serve, 1
exchange user_exchange_never, 0
# Whole pages of the program, of which all words are present: rdi = to, rsi = from; rax = words NOT
# written.
.global user_zero_page
user_zero_page:
    xor eax, eax
    mov ecx, 512
    stac
10: rep stosq
11: clac
    mov eax, ecx
    ret
    may_fault 10b, 11b, 0

.global user_write_page
user_write_page:
    mov ecx, 512
    stac
10: rep movsq
11: clac
    mov eax, ecx
    ret
    may_fault 10b, 11b, 0

.global user_copies_end
user_copies_end:
