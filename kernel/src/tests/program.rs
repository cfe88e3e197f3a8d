//! Programs: functions of a test that run in user mode of the machine, each on a thread of the
//! host.
//!
//! The processor ([`process`]) runs on the kernel's thread of the program. It passes the registers
//! to the program's thread, waits for a request of that thread, and returns to the kernel with a
//! system call or a page fault. `r15` identifies the program's thread. If a call returns 0 in a
//! copy of a program that set `r14`, the copy begins at the function in `r14`.

use std::boxed::Box;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec;
use std::vec::Vec;
use std::{process, thread};

use freehold_machine::{Access, VirtAddr};
use syscalls::Sysno;

use super::elf::{ROOM, ROOM_BYTES, STRIDE, TEXT};
use crate::hw::traps::Registers;
use crate::hw::user::{UserContext, UserEvent, set_processor};
use crate::hw::usercopy::{self, Faults};

/// A program, or a handler of a signal. The function returns its exit status.
pub type Main = fn(&mut Program) -> i32;

static CODE: Mutex<Vec<Main>> = Mutex::new(Vec::new());
static RUNNERS: Mutex<BTreeMap<u64, Arc<Runner>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Request of a program.
enum Ask {
    /// A system call.
    Call,
    /// Read bytes of its memory.
    Load(u64, usize),
    /// Change bytes of its memory.
    Store(u64, Vec<u8>),
}

/// Answer to a request.
enum Answer {
    Registers(Registers),
    Bytes(Vec<u8>),
}

/// The processor's side of a program's thread.
struct Runner {
    to: Mutex<Sender<Answer>>,
    from: Mutex<Receiver<(Registers, Ask)>>,
    /// The access that faulted, if any.
    pending: Mutex<Option<Ask>>,
}

/// Makes the machine run programs from now on: `main` is number 0, /bin/0.
pub fn begin(main: Main, others: &[Main]) {
    let mut code = CODE.lock().unwrap();
    code.push(main);
    code.extend_from_slice(others);
    set_processor(Box::new(process));
}

/// Returns the address of a function.
pub fn address_of(function: Main) -> u64 {
    let mut code = CODE.lock().unwrap();
    let index = code.iter().position(|&known| core::ptr::fn_addr_eq(known, function)).unwrap_or_else(|| {
        code.push(function);
        code.len() - 1
    });
    TEXT + STRIDE * index as u64
}

fn at(address: u64) -> Main {
    CODE.lock().unwrap()[((address - TEXT) / STRIDE) as usize]
}

fn start_runner(registers: &mut Registers, function: Main) -> Arc<Runner> {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    (registers.r15, registers.r14, registers.rip) = (id, 0, TEXT);
    let (to, receive) = channel();
    let (send, from) = channel();
    let runner = Arc::new(Runner { to: Mutex::new(to), from: Mutex::new(from), pending: Mutex::new(None) });
    RUNNERS.lock().unwrap().insert(id, runner.clone());
    let share = ROOM_BYTES / 16;
    let next = ROOM + id % 16 * share;
    let mut program =
        Program { registers: *registers, send, receive, next, end: next + share, arguments: registers.rsp };
    let body = move || {
        // The thread continues when it gets its registers.
        program.take_registers();
        let status = function(&mut program);
        program.raw(231, &[status as u64]);
    };
    thread::spawn(move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            process::exit(101);
        }
    });
    runner
}

/// Whether `registers` belong to a copy that begins at another function.
fn is_copy(context: &UserContext) -> bool {
    let registers = context.regs();
    let makes_copies = [56, 57, 58, 435];
    registers.r14 != 0
        && registers.rax == 0
        && registers.rip == TEXT + 2
        && context.called().is_some_and(|number| makes_copies.contains(&number))
}

/// The address of a program that pauses forever. It needs no thread.
const IDLE: u64 = TEXT + 4080;
const PAUSE: u64 = 34;

fn process(context: &mut UserContext) -> UserEvent {
    if context.regs().rip == IDLE || is_copy(context) && context.regs().r14 == IDLE {
        let registers = context.regs_mut();
        (registers.rip, registers.r14, registers.rax, registers.error) = (IDLE, 0, PAUSE, PAUSE);
        return UserEvent::Syscall;
    }
    let known = RUNNERS.lock().unwrap().get(&context.regs().r15).cloned();
    let runner = match known {
        Some(_) if is_copy(context) => {
            let function = at(context.regs().r14);
            start_runner(context.regs_mut(), function)
        }
        Some(runner) => runner,
        None => {
            let function = at(context.regs().rip);
            start_runner(context.regs_mut(), function)
        }
    };
    let pending = runner.pending.lock().unwrap().take();
    // A signal has arrived in between: its handler runs first, and the program tries again.
    let pending = pending.filter(|_| context.regs().rip == TEXT);
    let mut answer = match pending {
        None => Answer::Registers(*context.regs()),
        Some(ask) => match reach(&ask) {
            Ok(bytes) => Answer::Bytes(bytes),
            Err(event) => return fault(&runner, ask, event),
        },
    };
    loop {
        if runner.to.lock().unwrap().send(answer).is_err() {
            process::exit(101);
        }
        let Ok((registers, ask)) = runner.from.lock().unwrap_or_else(PoisonError::into_inner).recv() else {
            process::exit(101);
        };
        *context.regs_mut() = registers;
        if matches!(ask, Ask::Call) {
            return UserEvent::Syscall;
        }
        answer = match reach(&ask) {
            Ok(bytes) => Answer::Bytes(bytes),
            Err(event) => return fault(&runner, ask, event),
        };
    }
}

fn fault(runner: &Runner, ask: Ask, event: UserEvent) -> UserEvent {
    *runner.pending.lock().unwrap() = Some(ask);
    event
}

/// Performs a program's memory access, or returns the fault that it causes.
fn reach(ask: &Ask) -> Result<Vec<u8>, UserEvent> {
    let mut found = Vec::new();
    let (start, length, done, access) = match ask {
        Ask::Call => return Ok(found),
        Ask::Load(start, length) => {
            found.resize(*length, 0);
            (*start, *length, usercopy::read(VirtAddr(*start), &mut found, Faults::Never), Access::Read)
        }
        Ask::Store(start, bytes) => {
            let done = usercopy::write(VirtAddr(*start), bytes, Faults::Never);
            (*start, bytes.len(), done, Access::Write)
        }
    };
    if done < length {
        let code = 4 | if access == Access::Write { 2 } else { 0 };
        return Err(UserEvent::PageFault { addr: VirtAddr(start + done as u64), access, code });
    }
    Ok(found)
}

/// A running program, as its function sees it.
pub struct Program {
    registers: Registers,
    send: Sender<(Registers, Ask)>,
    receive: Receiver<Answer>,
    next: u64,
    end: u64,
    /// The address of argc.
    pub arguments: u64,
}

impl Program {
    fn exchange(&mut self, ask: Ask) -> Answer {
        if self.send.send((self.registers, ask)).is_err() {
            process::exit(101);
        }
        self.wait()
    }
    fn wait(&mut self) -> Answer {
        match self.receive.recv() {
            Ok(answer) => answer,
            // The machine has shut down.
            Err(_) => loop {
                thread::park();
            },
        }
    }
    fn take_registers(&mut self) {
        if let Answer::Registers(registers) = self.wait() {
            self.registers = registers;
        }
    }

    /// Makes a system call. Returns its result; errors are negative numbers. Signals are handled
    /// meanwhile.
    pub fn call(&mut self, number: Sysno, arguments: &[u64]) -> i64 {
        self.raw(number.id() as u64, arguments)
    }
    /// As [`Program::call`], with any number.
    pub fn raw(&mut self, number: u64, arguments: &[u64]) -> i64 {
        let argument = |index: usize| arguments.get(index).copied().unwrap_or(0);
        let r = &mut self.registers;
        (r.rdi, r.rsi, r.rdx) = (argument(0), argument(1), argument(2));
        (r.r10, r.r8, r.r9) = (argument(3), argument(4), argument(5));
        self.enter(number);
        self.settle();
        let result = self.registers.rax as i64;
        self.registers.rip = TEXT;
        result
    }
    /// Executes the instruction SYSCALL at [`TEXT`].
    fn enter(&mut self, number: u64) {
        let r = &mut self.registers;
        (r.rax, r.error, r.rip, r.rcx, r.r11) = (number, number, TEXT + 2, TEXT + 2, r.rflags);
        if let Answer::Registers(registers) = self.exchange(Ask::Call) {
            self.registers = registers;
        }
    }
    /// Runs handlers, and restarts a call, until the program is after its call.
    fn settle(&mut self) {
        loop {
            match self.registers.rip {
                rip if rip == TEXT + 2 => return,
                TEXT => self.enter(self.registers.rax),
                handler => self.handle(handler),
            }
        }
    }
    fn handle(&mut self, handler: u64) {
        let interrupted = self.registers;
        self.registers.rip = TEXT;
        at(handler)(self);
        // The handler returns to the restorer, which calls rt_sigreturn.
        self.registers = interrupted;
        self.registers.rsp += 8;
        self.enter(15);
    }
    /// Returns the number of the signal whose handler runs.
    pub fn signal(&self) -> u64 {
        self.registers.rdi
    }
    /// Returns the registers, which can be changed before a call.
    pub fn registers(&mut self) -> &mut Registers {
        &mut self.registers
    }

    fn access(&mut self, ask: impl Fn() -> Ask) -> Vec<u8> {
        loop {
            match self.exchange(ask()) {
                Answer::Bytes(bytes) => return bytes,
                Answer::Registers(registers) => {
                    self.registers = registers;
                    while self.registers.rip != TEXT {
                        self.handle(self.registers.rip);
                    }
                }
            }
        }
    }
    /// Reads bytes of its memory.
    pub fn load(&mut self, address: u64, length: usize) -> Vec<u8> {
        self.access(|| Ask::Load(address, length))
    }
    /// Reads a word of its memory.
    pub fn load_u64(&mut self, address: u64) -> u64 {
        u64::from_le_bytes(self.load(address, 8).try_into().unwrap())
    }
    /// Reads half a word of its memory.
    pub fn load_u32(&mut self, address: u64) -> u32 {
        u32::from_le_bytes(self.load(address, 4).try_into().unwrap())
    }
    /// Changes bytes of its memory.
    pub fn store(&mut self, address: u64, bytes: &[u8]) {
        self.access(|| Ask::Store(address, bytes.to_vec()));
    }
    /// Returns the address of `bytes` bytes of free memory. When all is used, earlier memory is
    /// reused.
    pub fn room(&mut self, bytes: usize) -> u64 {
        let bytes = (bytes as u64).next_multiple_of(16);
        if self.next + bytes > self.end {
            self.next = self.end - ROOM_BYTES / 16;
        }
        self.next += bytes;
        assert!(self.next <= self.end, "so much at a time has no room");
        self.next - bytes
    }
    /// Puts bytes into its memory. Returns their address.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.room(bytes.len().max(1));
        self.store(at, bytes);
        at
    }
    /// Puts words into its memory. Returns their address.
    pub fn words(&mut self, words: &[u64]) -> u64 {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        self.put(&bytes)
    }
    /// Puts a NUL-terminated text into its memory. Returns its address.
    pub fn text(&mut self, text: &str) -> u64 {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.put(&bytes)
    }

    /// As [`Program::call`], for a call that must succeed.
    pub fn must(&mut self, number: Sysno, arguments: &[u64]) -> u64 {
        let result = self.call(number, arguments);
        assert!(result >= 0, "{number} with {arguments:x?}: {result}");
        result as u64
    }
    /// Makes a copy of the program that runs `function` and exits with its result. Returns its
    /// process ID.
    pub fn fork(&mut self, function: Main) -> u64 {
        self.copy(function, &[17])
    }
    /// Makes a copy of the program that pauses until a signal ends it. Returns its process ID.
    pub fn fork_idle(&mut self) -> u64 {
        self.registers.r14 = IDLE;
        let id = self.must(Sysno::fork, &[]);
        self.registers.r14 = 0;
        id
    }
    /// Makes a copy with clone(2) and these arguments.
    pub fn copy(&mut self, function: Main, arguments: &[u64]) -> u64 {
        self.registers.r14 = address_of(function);
        let id = self.must(Sysno::clone, arguments);
        self.registers.r14 = 0;
        id
    }
    /// Waits for a child. Returns its status in the format of wait4(2).
    pub fn wait_for(&mut self, child: u64) -> u32 {
        let status = self.put(&[0; 4]);
        assert_eq!(self.must(Sysno::wait4, &[child, status, 0, 0]), child);
        self.load_u32(status)
    }
    /// Opens a file.
    pub fn open(&mut self, path: &str, flags: u64) -> i64 {
        let path = self.text(path);
        self.call(Sysno::openat, &[-100i64 as u64, path, flags, 0o644])
    }
    /// Reads a file to its end.
    pub fn read_file(&mut self, path: &str) -> Result<Vec<u8>, i64> {
        let file = self.open(path, 0);
        if file < 0 {
            return Err(file);
        }
        let buffer = self.room(8192);
        let mut all = Vec::new();
        let result = loop {
            match self.call(Sysno::read, &[file as u64, buffer, 8192]) {
                0 => break Ok(all),
                error if error < 0 => break Err(error),
                read => all.extend(self.load(buffer, read as usize)),
            }
            if all.len() > 1 << 20 {
                break Ok(all);
            }
        };
        self.must(Sysno::close, &[file as u64]);
        result
    }
    /// Writes a file's content in one call. Returns write(2)'s result.
    pub fn write_file(&mut self, path: &str, bytes: &[u8]) -> i64 {
        let file = self.open(path, 0o1 | 0o100 | 0o1000);
        if file < 0 {
            return file;
        }
        let buffer = self.put(bytes);
        let result = self.call(Sysno::write, &[file as u64, buffer, bytes.len() as u64]);
        self.must(Sysno::close, &[file as u64]);
        result
    }
    /// Allocates memory with mmap(2).
    pub fn map(&mut self, bytes: u64) -> u64 {
        self.must(Sysno::mmap, &[0, bytes, 3, 0x22, u64::MAX, 0])
    }
}
