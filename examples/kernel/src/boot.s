# From the PVH loader (32-bit protected mode, paging off, ebx: address of the start info) to `start`
# in the top 2 GiB. The first 16 MiB of memory are mapped twice: where they are, for these few
# instructions, and at BASE.
.set PHYS, 0x80000000               # added to an address of the image: its physical address

.section .data.boot, "aw"
.balign 4096
.global root_table
root_table:
    .quad   low_table + PHYS + 3    # present, writable
    .skip   510 * 8
    .quad   high_table + PHYS + 3
low_table:
    .quad   image_table + PHYS + 3
    .skip   511 * 8
high_table:
    .skip   510 * 8
    .quad   image_table + PHYS + 3
    .skip   8
image_table:
    .set    page, 0x83              # present, writable, 2 MiB
    .rept   8
    .quad   page
    .set    page, page + 0x200000
    .endr
    .skip   504 * 8
gdt:
    .quad   0, 0x00af9b000000ffff   # 64-bit code; data segments stay the loader's
gdt_pointer:
    .word   15
    .long   gdt + PHYS

.section .boot.text, "ax"
.code32
.global pvh_start
pvh_start:
    cld
    movl    $(root_table + PHYS), %eax
    movl    %eax, %cr3
    movl    $0x20, %eax             # PAE
    movl    %eax, %cr4
    movl    $0xc0000080, %ecx       # EFER: long mode, no-execute
    movl    $0x900, %eax
    xorl    %edx, %edx
    wrmsr
    movl    $0x80010033, %eax       # PG WP NE ET MP PE
    movl    %eax, %cr0
    lgdt    gdt_pointer + PHYS
    ljmp    $8, $(1f + PHYS)
.code64
1:  movq    $2f, %rax
    jmp     *%rax
2:  movq    $end_of_stack, %rsp
    movl    %ebx, %edi
    call    {start}
