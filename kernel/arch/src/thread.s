# thread_switch: rdi = where to keep this stack pointer, rsi = the stack pointer to go on with.
# Called with interrupts off. Saves only the registers that the calling convention preserves.
.global thread_switch
thread_switch:
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    mov [rdi], rsp
    mov rsp, rsi
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret

# Where a new thread begins: rbp is 0, so that backtraces end here.
.global thread_begin
thread_begin:
    xor ebp, ebp
    call {main}
    ud2
