# Every way into the kernel, and the way back to user mode.
#
# A frame, from low to high: r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi | vector,
# error | rip cs rflags rsp ss. From user mode it is built right inside the user context (the task
# state's rsp0 and gs:[CONTEXT_END] point behind it), and the kernel goes on where `user_enter` left
# off, as if that had returned. From kernel mode it is built on the current stack, or on the
# vector's own (IST).
#
# GS: in user mode the base is the program's, any value (WRGSBASE), in kernel mode this CPU's
# PerCpu; swapped at every crossing. NMI, double fault and machine check may come in the gap
# between: their stacks hold the address of the PerCpu. A fence follows each branch on where a trap
# came from: without it the CPU may go on for a while with the wrong base.
#
# Debug exceptions come there, too. If MOV SS or POP SS accesses a watched address, the CPU reports
# it after the next instruction, which may be SYSCALL or INT. The exception then comes before the
# kernel's first instruction, with the program's stack pointer (CVE-2018-8897). So debug exceptions
# have a stack of their own.
#
# AC: no gate clears it, and with it SMAP is off. CLAC is the first instruction of every vector;
# SYSCALL clears the flag (MSR_FMASK). NT, TF, RF and IF are cleared by the gates and by SYSCALL, DF
# by CLD and by SYSCALL.

.set KERNEL_STACK, {kernel_stack}
.set CONTEXT_END, {context_end}
.set USER_STACK, {user_stack}
.set TASK_RSP0, {task_rsp0}
.set KERNEL_DATA, {kernel_data}

.macro push_registers
    push rdi
    push rsi
    push rdx
    push rcx
    push rax
    push r8
    push r9
    push r10
    push r11
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
.endm

.macro pop_registers
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    pop r11
    pop r10
    pop r9
    pop r8
    pop rax
    pop rcx
    pop rdx
    pop rsi
    pop rdi
.endm

# To user mode, rsp = frame. VERW, where the CPU needs it, is the last instruction that may read
# data of the kernel; there is room for it behind the end.
.macro sysret_to_user
    pop_registers
    mov rcx, [rsp + 16]
    mov r11, [rsp + 32]
    mov rsp, [rsp + 40]
1:  swapgs
    sysretq
    .fill 9, 1, 0xcc
2:  alternative 1b, 2b, {clears_buffers}, "verw word ptr gs:[KERNEL_DATA]; swapgs; sysretq"
.endm

.macro iret_to_user
    pop_registers
    add rsp, 16
1:  swapgs
    iretq
    .fill 9, 1, 0xcc
2:  alternative 1b, 2b, {clears_buffers}, "verw word ptr gs:[KERNEL_DATA]; swapgs; iretq"
.endm

.text
# One 16-byte entry per vector.
.balign 16
.global trap_vectors
trap_vectors:
.set vector, 0
.rept 256
    .balign 16
    clac
    .if vector == 1 || vector == 2 || vector == 8 || vector == 18
        .if vector != 8
        push 0
        .endif
        .byte 0x68                  # push imm32
        .long vector
        jmp trap_own_stack
    .else
        # 10 to 14, 17, 21, 29 and 30 push an error code.
        .if !(vector >= 10 && vector <= 14 || vector == 17 || vector == 21 || vector == 29 || vector == 30)
        push 0
        .endif
        .byte 0x68                  # push imm32
        .long vector
        jmp trap_common
    .endif
    .set vector, vector + 1
.endr

.balign 16
trap_common:
    cld
    test byte ptr [rsp + 24], 3
    jnz trap_from_user
    lfence
    push_registers
    mov rdi, rsp
    # Interrupted code may hold any alignment.
    mov rbx, rsp
    and rsp, -16
    call {kernel_trap}
    mov rsp, rbx
    pop_registers
    add rsp, 16
    iretq

trap_from_user:
    push_registers
    swapgs
    lfence
leave_user:
    mov rsp, gs:[KERNEL_STACK]
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret

# On the vector's own stack, with either GS base: the one found is kept in r13:r12 and put back.
trap_own_stack:
    cld
    push_registers
    mov ecx, 0xc0000101         # GS base
    rdmsr
    mov r12d, eax
    mov r13d, edx
    mov eax, [rsp + 22 * 8]     # the PerCpu's address, at the top of the stack
    mov edx, [rsp + 22 * 8 + 4]
    wrmsr
    mov rdi, rsp
    mov rbx, rsp
    and rsp, -16
    call {own_stack_trap}
    mov rsp, rbx
    mov r14d, eax
    mov ecx, 0xc0000101
    mov eax, r12d
    mov edx, r13d
    wrmsr
    test r14d, r14d
    jnz 1f
    pop_registers
    add rsp, 16
    iretq
1:  swapgs                      # from user mode, and the program's affair: its registers are in the user context
    jmp leave_user

.balign 16
.global syscall_entry
syscall_entry:
    swapgs
    mov gs:[USER_STACK], rsp
    mov rsp, gs:[CONTEXT_END]
    push 0x2b                   # user data
    push gs:[USER_STACK]
    push r11
    push 0x33                   # user code
    push rcx
    push rax
    push 0x100                  # a system call
    push_registers
    jmp leave_user

# SYSCALL from a 32-bit code segment, on the program's stack: no 32-bit call exists (ENOSYS).
.balign 16
.global syscall_entry_32
syscall_entry_32:
    mov eax, -38
    .byte 0x0f, 0x07            # sysretl

# user_enter: rdi = frame, esi = 1 where SYSRET may be used. Interrupts are off. Returns with
# interrupts off when the CPU is back from user mode, the frame filled anew.
.balign 16
.global user_enter
user_enter:
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    mov gs:[KERNEL_STACK], rsp
    lea rax, [rdi + 22 * 8]
    mov gs:[CONTEXT_END], rax
    mov gs:[TASK_RSP0], rax
    mov rsp, rdi
    test esi, esi
    jz 3f
    sysret_to_user
3:  iret_to_user
