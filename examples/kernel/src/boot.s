# From the PVH loader (32-bit protected mode, paging off, ebx = physical address of the start info)
# to `start` in the top 2 GiB. The first GiB of memory is mapped twice: where it is, for these few
# instructions, and at BASE. `hardware::start` takes away what the image does not need.
.set PHYS, 0x80000000               # added to an address of the image: its physical address

.section .bss.boot, "aw", @nobits
.balign 4096
.global root_table, pages_table
root_table:  .skip 4096
boot_low:   .skip 4096
boot_high:  .skip 4096
pages_table: .skip 4096
            .skip 0x20000
boot_stack:

.section .boot.text, "ax"
.code32
.global pvh_start
pvh_start:
    cld
    cli
    movl    $(pages_table + PHYS), %edi
    movl    $0x83, %eax             # present, writable, 2 MiB
1:  movl    %eax, (%edi)
    addl    $0x200000, %eax
    addl    $8, %edi
    cmpl    $(pages_table + PHYS + 4096), %edi
    jne     1b
    movl    $(boot_low + PHYS + 3), root_table + PHYS
    movl    $(boot_high + PHYS + 3), root_table + PHYS + 511 * 8
    movl    $(pages_table + PHYS + 3), boot_low + PHYS
    movl    $(pages_table + PHYS + 3), boot_high + PHYS + 510 * 8

    movl    %cr4, %eax
    orl     $0x20, %eax             # PAE
    movl    %eax, %cr4
    movl    $(root_table + PHYS), %eax
    movl    %eax, %cr3
    movl    $0xc0000080, %ecx       # EFER: long mode, no-execute
    rdmsr
    orl     $0x900, %eax
    wrmsr
    movl    $0x80010033, %eax       # PG WP NE ET MP PE
    movl    %eax, %cr0
    lgdt    boot_gdt_pointer + PHYS
    ljmp    $8, $(2f + PHYS)

.code64
2:  movl    $16, %eax
    movl    %eax, %ds
    movl    %eax, %es
    movl    %eax, %ss
    movq    $3f, %rax
    jmp     *%rax
3:  movq    $boot_stack, %rsp
    movl    %ebx, %edi
    xorl    %ebp, %ebp
    call    {start}
    ud2

.balign 8
boot_gdt:
    .quad   0
    .quad   0x00af9b000000ffff      # 64-bit code
    .quad   0x00cf93000000ffff      # data
boot_gdt_pointer:
    .word   23
    .long   boot_gdt + PHYS
