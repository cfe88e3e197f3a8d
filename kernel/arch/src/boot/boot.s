# From the PVH loader to Rust in the high half.
#
# Entered in 32-bit protected mode, paging off, interrupts off, ebx = physical address of the start
# info (Xen's public/arch-x86/hvm/start_info.h). Uses conventional memory away from the loader's
# data (0..0x10000, 0x20000 under QEMU):
#   0x51000 top-level table   0x52000 identity PDPT   0x53000 identity PD (first GiB)
#   0x54000 image PDPT        0x55000, 0x56000 image PDs (two GiB)      0x57000..0x58000 stack
#   0x58000 trampoline
# The tables also serve the application processors' trampoline; nothing maps them after start-up.

.set BASE, 0xffffffff80000000
.set IMAGE_LEAVES, {image_leaves}   # of 2 MiB

.section .boot.text, "ax"
.code32
.global pvh_start
pvh_start:
    cld
    cli
    mov     esp, 0x58000
    rdtsc
    push    edx
    push    eax
    push    0
    push    ebx
    call    1f
1:  pop     ebp                     # physical address of label 1

    xor     eax, eax
    mov     edi, 0x51000
    mov     ecx, 0x6000 / 4
    rep     stosd
    mov     dword ptr [0x51000], 0x52003
    mov     dword ptr [0x51000 + 511 * 8], 0x54003
    mov     dword ptr [0x52000], 0x53003
    mov     dword ptr [0x54000 + 510 * 8], 0x55003
    mov     dword ptr [0x54000 + 511 * 8], 0x56003
    mov     edi, 0x53000
    mov     eax, 0x83
2:  mov     [edi], eax
    add     eax, 0x200000
    add     edi, 8
    cmp     edi, 0x54000
    jne     2b

    mov     eax, cr4
    or      eax, 0x20               # PAE
    mov     cr4, eax
    mov     eax, 0x51000
    mov     cr3, eax
    mov     ecx, 0xc0000080         # EFER: long mode, no-execute
    rdmsr
    or      eax, 0x900
    wrmsr
    mov     eax, 0x80010033         # PG WP NE ET MP PE
    mov     cr0, eax
.att_syntax prefix                  # the Intel syntax has no difference of two symbols here
    leal    (boot_gdt - 1b)(%ebp), %eax
    movl    %eax, (boot_gdt_pointer + 2 - 1b)(%ebp)
    lgdt    (boot_gdt_pointer - 1b)(%ebp)
    leal    (3f - 1b)(%ebp), %eax
.intel_syntax noprefix
    push    8
    push    eax
    retf

.code64
3:  mov     eax, 16
    mov     ds, eax
    mov     es, eax
    mov     ss, eax
    xor     eax, eax
    mov     fs, eax
    mov     gs, eax
    pop     r14                     # start info
    pop     r15                     # time stamp

    # The slide: hardware random bits where there are any, and the time stamp. RDRAND may have none
    # at the moment: it then clears the carry flag, and is asked up to ten times (Intel SDM volume
    # 1, 7.3.17.1).
    mov     eax, 1
    cpuid
    xor     edi, edi
    bt      ecx, 30
    jnc     4f
    mov     ecx, 10
2:  rdrand  rdi
    jc      4f
    loop    2b
    xor     edi, edi
4:  rdtsc
    shl     rdx, 32
    lea     rsi, [rax + rdx]
    mov     rdx, r14
    call    {virtual_slide}
    mov     r12, rax                # slide in bytes

    # The image, 16 MiB from 2 MiB on, at its slid place in the two image PDs.
    mov     rdi, rax
    shr     rdi, 21
    lea     rdi, [0x55000 + rdi * 8 + 8]
    mov     eax, 0x200083
    mov     ecx, IMAGE_LEAVES
5:  mov     [rdi], rax
    add     rax, 0x200000
    add     rdi, 8
    loop    5b

    mov     r13, BASE
    lea     rbx, [rip + __rela_start]
    lea     rcx, [rip + __rela_end]
6:  cmp     rbx, rcx
    jae     8f
    cmp     dword ptr [rbx + 8], 8  # R_X86_64_RELATIVE: the only kind in a static PIE
    jne     7f
    mov     rax, [rbx + 16]
    add     rax, r12
    mov     rdx, [rbx]
    sub     rdx, r13
    mov     [rdx], rax
    add     rbx, 24
    jmp     6b
7:  hlt
    jmp     7b

8:  lea     rax, [rip + 9f]
    add     rax, r13
    add     rax, r12
    jmp     rax
9:  lea     rsp, [rip + {stack}]
    add     rsp, {stack_size}
    push    2                       # no flag of the loader stays
    popfq
    xor     ebp, ebp
    mov     rdi, r14
    mov     rsi, r12
    mov     rdx, r15
    call    {early}
    ud2

.balign 8
boot_gdt:
    .quad   0
    .quad   0x00af9b000000ffff      # 64-bit code
    .quad   0x00cf93000000ffff      # data
boot_gdt_pointer:
    .word   23
    .quad   0
