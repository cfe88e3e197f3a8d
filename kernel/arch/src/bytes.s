# memcpy, memmove, memset, memcmp and bcmp, which the compiler calls. Most runs that a kernel moves
# or compares are short (names, small structures): these take a few plain moves, of which the last
# overlaps the one before. Longer runs take repeated moves of words, or of bytes where these are
# as fast. The direction flag is clear wherever compiled code runs, and trap entry clears it for
# handlers.

.text

# memmove: rdi = to, rsi = from, rdx = bytes; rax = to.
.balign 16
.global memmove
memmove:
    mov rax, rdi
    cmp rdx, 32
    jbe copy_short
    sub rax, rsi
    cmp rax, rdx
    mov rax, rdi
    jae copy_long
    # The target begins inside the source: downwards. The lowest word, which may be cut by the last
    # step, is kept.
    mov r8, [rsi]
    mov rcx, rdx
    shr rcx, 3
    lea rsi, [rsi + rdx - 8]
    lea rdi, [rdi + rdx - 8]
    std
    rep movsq
    cld
    mov [rax], r8
    ret

# memcpy: as memmove, for runs that do not overlap.
.balign 16
.global memcpy
memcpy:
20: mov rax, rdi
    cmp rdx, 32
    ja copy_long
21: alternative 20b, 21b, {fast_short_strings}, "mov rax, rdi; mov rcx, rdx; rep movsb; ret"
# At most 32 bytes; all are loaded before one is stored.
copy_short:
    cmp edx, 8
    jae 2f
    cmp edx, 4
    jae 1f
    test edx, edx
    jz 0f
    movzx ecx, byte ptr [rsi]
    movzx r8d, byte ptr [rsi + rdx - 1]
    mov r9d, edx
    shr r9d
    movzx esi, byte ptr [rsi + r9]
    mov [rdi], cl
    mov [rdi + r9], sil
    mov [rdi + rdx - 1], r8b
0:  ret
1:  mov ecx, [rsi]
    mov r8d, [rsi + rdx - 4]
    mov [rdi], ecx
    mov [rdi + rdx - 4], r8d
    ret
2:  cmp edx, 16
    ja 3f
    mov rcx, [rsi]
    mov r8, [rsi + rdx - 8]
    mov [rdi], rcx
    mov [rdi + rdx - 8], r8
    ret
3:  mov rcx, [rsi]
    mov r8, [rsi + 8]
    mov r9, [rsi + rdx - 16]
    mov r10, [rsi + rdx - 8]
    mov [rdi], rcx
    mov [rdi + 8], r8
    mov [rdi + rdx - 16], r9
    mov [rdi + rdx - 8], r10
    ret
# Upwards: the target is below the source, or they do not overlap. The topmost word is kept.
copy_long:
20: mov r8, [rsi + rdx - 8]
    mov rcx, rdx
    shr rcx, 3
    rep movsq
    mov [rax + rdx - 8], r8
    ret
21: alternative 20b, 21b, {fast_strings}, "mov rcx, rdx; rep movsb; ret"

# memset: rdi = where, sil = what, rdx = bytes; rax = where.
.balign 16
.global memset
memset:
    mov r8, rdi
    movzx eax, sil
    mov rcx, 0x0101010101010101
    imul rax, rcx
    cmp rdx, 32
    ja 4f
    cmp edx, 8
    jae 2f
    cmp edx, 4
    jae 1f
    test edx, edx
    jz 0f
    mov [rdi], al
    mov [rdi + rdx - 1], al
    shr edx
    mov [rdi + rdx], al
0:  mov rax, r8
    ret
1:  mov [rdi], eax
    mov [rdi + rdx - 4], eax
    mov rax, r8
    ret
2:  mov [rdi], rax
    mov [rdi + rdx - 8], rax
    cmp edx, 16
    jbe 3f
    mov [rdi + 8], rax
    mov [rdi + rdx - 16], rax
3:  mov rax, r8
    ret
4:  mov [rdi + rdx - 8], rax
    mov rcx, rdx
    shr rcx, 3
    rep stosq
    mov rax, r8
    ret
5:  alternative 4b, 5b, {fast_strings}, "mov rcx, rdx; rep stosb; mov rax, r8; ret"

# memcmp and bcmp: rdi, rsi = what, rdx = bytes; eax = less than, equal to or greater than 0, by the
# first bytes that differ.
.balign 16
.global memcmp
.global bcmp
memcmp:
bcmp:
    cmp rdx, 8
    jb 3f
1:  mov rax, [rdi]
    mov rcx, [rsi]
    cmp rax, rcx
    jne 2f
    add rdi, 8
    add rsi, 8
    sub rdx, 8
    cmp rdx, 8
    jae 1b
    test edx, edx
    jz 7f
    # The last word, with some bytes that are known to be equal.
    mov rax, [rdi + rdx - 8]
    mov rcx, [rsi + rdx - 8]
    cmp rax, rcx
    je 7f
2:  bswap rax
    bswap rcx
    cmp rax, rcx
    sbb eax, eax
    or eax, 1
    ret
3:  cmp edx, 4
    jb 5f
    mov eax, [rdi]
    mov ecx, [rsi]
    cmp eax, ecx
    jne 4f
    mov eax, [rdi + rdx - 4]
    mov ecx, [rsi + rdx - 4]
    cmp eax, ecx
    je 7f
4:  bswap eax
    bswap ecx
    cmp eax, ecx
    sbb eax, eax
    or eax, 1
    ret
5:  test edx, edx
    jz 7f
6:  movzx eax, byte ptr [rdi]
    movzx ecx, byte ptr [rsi]
    sub eax, ecx
    jne 8f
    inc rdi
    inc rsi
    dec edx
    jnz 6b
7:  xor eax, eax
8:  ret
