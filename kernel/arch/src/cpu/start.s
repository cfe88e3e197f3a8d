# A secondary CPU from real mode to Rust. Copied to {trampoline}, where a start-up interrupt begins
# it with cs = that / 16 and ip = 0. The loader's tables (top at 0x51000) map low memory and the
# image.

.section .rodata.secondary, "a"
.balign 16
.code16
.global secondary_start
secondary_start:
    cli
    cld
    mov     ax, cs
    mov     ds, ax
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
.att_syntax prefix
    lgdtl   (secondary_gdt_pointer - secondary_start)
    ljmpl   $8, $({trampoline} + (secondary_long - secondary_start))
.intel_syntax noprefix
.code64
secondary_long:
    mov     eax, 16
    mov     ds, eax
    mov     es, eax
    mov     ss, eax
    xor     eax, eax
    mov     fs, eax
    mov     gs, eax
    mov     rax, [rip + secondary_target]
    jmp     rax

.balign 8
secondary_target:
    .quad   secondary_high
secondary_gdt:
    .quad   0
    .quad   0x00af9b000000ffff
    .quad   0x00cf93000000ffff
secondary_gdt_pointer:
    .word   23
    .long   {trampoline} + (secondary_gdt - secondary_start)
.global secondary_end
secondary_end:

.text
secondary_high:
    mov     eax, 1
    lock xadd [rip + {ticket}], eax
    lea     rcx, [rip + {stacks}]
    mov     rdx, [rcx + rax * 8]
    mov     rcx, [rip + {root}]
    mov     cr3, rcx
    mov     rsp, rdx
    xor     ebp, ebp
    call    {main}
    ud2
