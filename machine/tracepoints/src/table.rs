//! The table of events. Adding one is an entry here and a [`trace!`](crate::trace) in the code
//! where the event occurs.
//!
//! An entry is: system, name, the type whose values are recorded, its fields, and its text (see
//! `template.rs`). `names` gives the names for a field's values. Events that Linux has use Linux'
//! names and fields. The others are in the system `freehold`.

use crate::field::{Comm, Field, FieldType, Pid};
use crate::format::COMMON_BYTES;
use crate::template::{Piece, pieces};

/// An event that can be recorded.
pub trait TraceEvent {
    /// The event's index in [`EVENTS`].
    const NUMBER: usize;
    /// The words of its fields.
    type Words: core::ops::Deref<Target = [u64]>;
    /// The words of its fields.
    fn words(&self) -> Self::Words;
}

/// Description of an event.
#[derive(Debug)]
pub struct EventDescription {
    /// The event's group.
    pub system: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub(crate) template: &'static str,
    number: usize,
    list: &'static [(&'static str, FieldType)],
    names: &'static [(&'static str, ValueNames)],
}

/// The words for the values of a field.
type ValueNames = &'static [(i64, &'static str)];

/// A field of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldDescription {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: FieldType,
    /// Offset of the field, in bytes after the common fields.
    pub offset: usize,
}

/// Ids begin here. Linux uses lower ones for its tracers' records, and 5 for `print`.
const FIRST_ID: u16 = 32;
/// The id of [`Print`], which is Linux'.
const PRINT_ID: u16 = 5;

/// The id that files have for event `number`.
pub(crate) const fn id_of(number: usize) -> u16 {
    if number == PRINT { PRINT_ID } else { FIRST_ID + number as u16 }
}

const fn aligned(offset: usize, kind: FieldType) -> usize {
    // The common fields are eight bytes, so offsets have the same alignment before and after them.
    let _ = COMMON_BYTES;
    offset.next_multiple_of(kind.align)
}

/// The offset of field number `which`, or, for one past the last, the end of the fields.
const fn offset_of(list: &[(&str, FieldType)], which: usize) -> usize {
    let (mut at, mut end) = (0, 0);
    while at < list.len() {
        let start = aligned(end, list[at].1);
        if at == which {
            return start;
        }
        end = start + list[at].1.size;
        at += 1;
    }
    end
}

impl EventDescription {
    /// The id in `id` and in `format`.
    pub const fn id(&self) -> u16 {
        id_of(self.number)
    }
    /// Its place in [`EVENTS`].
    pub const fn number(&self) -> usize {
        self.number
    }
    /// Its fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = FieldDescription> {
        let list = self.list;
        list.iter().enumerate().map(move |(at, &(name, kind))| FieldDescription {
            name,
            kind,
            offset: offset_of(list, at),
        })
    }
    /// The field that its text names.
    pub(crate) fn field(&self, name: &str) -> FieldDescription {
        let missing = FieldDescription { name: "?", kind: <u64 as Field>::TYPE, offset: 0 };
        self.fields().find(|field| field.name == name).unwrap_or(missing)
    }
    /// The words for values of a field.
    pub fn names_of(&self, field: &str) -> impl Iterator<Item = (i64, &'static str)> {
        let all = self.names.iter().filter(move |(name, _)| *name == field);
        all.flat_map(|(_, names)| names.iter().copied())
    }
    /// Bytes of its fields.
    pub(crate) const fn bytes(&self) -> usize {
        offset_of(self.list, self.list.len())
    }
    /// Its name in a line of `trace`: for a marker, the name of the function that wrote it.
    pub(crate) fn line_name(&self) -> &'static str {
        if self.number == PRINT { "tracing_mark_write" } else { self.name }
    }
    /// Whether programs write it (`trace_marker`): such an event cannot be turned off.
    pub const fn is_marker(&self) -> bool {
        self.number == PRINT
    }
    /// Whether it stands for all kprobes: its text has the probe's name.
    pub const fn is_kprobe(&self) -> bool {
        self.number == Numbers::Kprobe as usize
    }
    /// Whether it is turned on and off, for all of its places at once.
    pub const fn has_switch(&self) -> bool {
        !self.is_marker() && !self.is_kprobe()
    }
    /// Whether each field that the text names exists.
    pub fn is_sound(&self) -> bool {
        pieces(self.template).all(|piece| match piece {
            Piece::Words(words) => !words.contains(['{', '}']),
            Piece::Field { name, .. } => self.list.iter().any(|(known, _)| *known == name),
        })
    }
}

macro_rules! tracepoints {
    ($(
        $(#[doc = $doc:literal])+
        $system:literal $name:literal $type:ident { $($(#[doc = $of:literal])* $field:ident: $kind:ty),* $(,)? }
        $template:literal
        $(names $named:literal: $names:expr)*;
    )+) => {
        /// The events' numbers.
        #[repr(usize)]
        enum Numbers { $($type),+ }

        /// How many events there are.
        pub const COUNT: usize = [$(Numbers::$type as usize),+].len();

        /// All events, by number.
        pub static EVENTS: [EventDescription; COUNT] = [$(EventDescription {
            system: $system,
            name: $name,
            template: $template,
            number: Numbers::$type as usize,
            list: <$type>::FIELDS,
            names: &[$(($named, $names)),*],
        }),+];

        $(
            $(#[doc = $doc])+
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            #[allow(missing_docs, reason = "fields are documented where their names do not say it")]
            pub struct $type { $($(#[doc = $of])* pub $field: $kind),* }

            impl $type {
                const FIELDS: &'static [(&'static str, FieldType)] =
                    &[$((stringify!($field), <$kind as Field>::TYPE)),*];
                const BYTES: usize = offset_of(Self::FIELDS, Self::FIELDS.len());
            }

            impl TraceEvent for $type {
                const NUMBER: usize = Numbers::$type as usize;
                type Words = Owned<{ <$type>::BYTES.div_ceil(8) }>;
                #[inline(always)]
                fn words(&self) -> Self::Words {
                    const WORDS: usize = <$type>::BYTES.div_ceil(8);
                    let mut words = [[0u8; 8]; WORDS];
                    let bytes = words.as_flattened_mut();
                    let mut which = 0;
                    $(
                        let start = offset_of(Self::FIELDS, which);
                        self.$field.put(&mut bytes[start..start + <$kind as Field>::TYPE.size]);
                        which += 1;
                    )*
                    let _ = which;
                    Owned(words.map(u64::from_le_bytes))
                }
            }
        )+
    };
}

/// The words of an event's fields.
#[derive(Clone, Copy, Debug)]
pub struct Owned<const N: usize>([u64; N]);

impl<const N: usize> core::ops::Deref for Owned<N> {
    type Target = [u64];
    #[inline(always)]
    fn deref(&self) -> &[u64] {
        &self.0
    }
}

/// The names for the states of a thread that leaves its CPU.
const STATES: ValueNames = &[(0, "R"), (1, "S"), (2, "D"), (4, "T"), (8, "t"), (16, "X")];
/// The owners of frames, by their numbers (`freehold_frame::Owner`).
pub const OWNERS: ValueNames = &[
    (0, "Free"),
    (1, "Reserved"),
    (2, "Kernel"),
    (3, "PageTable"),
    (4, "Bounce"),
    (5, "Replica"),
    (6, "Anon"),
    (7, "PageCache"),
    (8, "Time"),
    (9, "DeviceTable"),
    (10, "Stack"),
    (11, "Ring"),
];
/// Results of a store to a shared page.
const DECISIONS: ValueNames = &[(0, "reused"), (1, "copied")];
/// Reasons for TLB flushes, by Linux' numbers.
const FLUSHES: ValueNames = &[
    (0, "flush on task switch"),
    (1, "remote shootdown"),
    (2, "local shootdown"),
    (3, "local MM shootdown"),
    (4, "remote IPI send"),
];
/// Reasons for opening a window.
const WINDOWS: ValueNames = &[(0, "read"), (1, "write")];
const NO_YES: ValueNames = &[(0, "false"), (1, "true")];

/// The number of the event for markers.
const PRINT: usize = Numbers::Print as usize;

tracepoints! {
    /// A program wrote a marker.
    "ftrace" "print" Print { buf: () } "{buf}";
    /// A system call begins.
    "raw_syscalls" "sys_enter" SysEnter { id: i64, args: [u64; 6] } "NR {id} ({args})";
    /// A system call ends.
    "raw_syscalls" "sys_exit" SysExit { id: i64, ret: i64 } "NR {id} = {ret}";
    /// A CPU switches to another thread.
    "sched" "sched_switch" SchedSwitch {
        prev_comm: Comm, prev_pid: Pid, prev_prio: i32, prev_state: i64,
        next_comm: Comm, next_pid: Pid, next_prio: i32,
    } "prev_comm={prev_comm} prev_pid={prev_pid} prev_prio={prev_prio} prev_state={prev_state:?} ==> \
       next_comm={next_comm} next_pid={next_pid} next_prio={next_prio}"
        names "prev_state": STATES;
    /// A thread that slept, or is new, is put into a run queue.
    "sched" "sched_wakeup" SchedWakeup { comm: Comm, pid: Pid, prio: i32, target_cpu: i32 }
        "comm={comm} pid={pid} prio={prio} target_cpu={target_cpu:03}";
    /// A thread was made.
    "sched" "sched_process_fork" SchedFork {
        parent_comm: Comm, parent_pid: Pid, child_comm: Comm, child_pid: Pid,
    } "comm={parent_comm} pid={parent_pid} child_comm={child_comm} child_pid={child_pid}";
    /// A process runs another program. Linux has the file's name here. Freehold omits it, since a
    /// path is a program's data.
    "sched" "sched_process_exec" SchedExec { comm: Comm, pid: Pid, old_pid: Pid }
        "comm={comm} pid={pid} old_pid={old_pid}";
    /// A thread ends.
    "sched" "sched_process_exit" SchedExit { comm: Comm, pid: Pid, prio: i32, group_dead: bool }
        "comm={comm} pid={pid} prio={prio} group_dead={group_dead:?}"
        names "group_dead": NO_YES;
    /// A program's access finds no page, or one that does not allow it.
    "exceptions" "page_fault_user" PageFaultUser { address: u64, ip: u64, error_code: u64 }
        "address={address:x} ip={ip:x} error_code=0x{error_code:x}";
    /// The kernel's access to a program's memory finds no page that allows it. Its own addresses
    /// are not recorded.
    "exceptions" "page_fault_kernel" PageFaultKernel { address: u64, error_code: u64 }
        "address={address:x} error_code=0x{error_code:x}";
    /// A block of frames gets another owner.
    "freehold" "frame_owner" FrameOwner { pfn: u64, order: u32, from: u32, to: u32 }
        "pfn=0x{pfn:x} order={order} from={from:?} to={to:?}"
        names "from": OWNERS names "to": OWNERS;
    /// A store to a page that may be shared: the kernel decides whether to copy it.
    "freehold" "cow" CopyOnWrite { address: u64, pfn: u64, decision: u32 }
        "address={address:x} pfn=0x{pfn:x} decision={decision:?}"
        names "decision": DECISIONS;
    /// A window opens on a frame that is not in the kernel's map.
    "freehold" "xpfo_window" XpfoWindow { pfn: u64, access: u32 }
        "pfn=0x{pfn:x} access={access:?}"
        names "access": WINDOWS;
    /// Text or bytes in a program's memory that an argument of a system call points to (see
    /// `calls`): recorded after `sys_enter`, or before `sys_exit` if the call filled them.
    "freehold" "syscall_text" SyscallText {
        /// The number of the argument.
        arg: u32,
        /// The number of the text in a vector; 0 elsewhere.
        part: u32,
        /// Bytes in `buf`.
        taken: u32,
        /// Whether there are more bytes, or more texts.
        more: u32,
        buf: (),
    } "arg={arg} part={part} taken={taken} more={more:?} {buf}"
        names "more": NO_YES;
    /// A thread ends; its status is that of its process once that ends.
    "freehold" "thread_end" ThreadEnd {
        tgid: Pid,
        /// As `wait4` returns it.
        status: u32,
    } "tgid={tgid} status=0x{status:x}";
    /// Bytes are copied to or from bounce memory, which a device accesses.
    "swiotlb" "swiotlb_bounced" SwiotlbBounced { dev_name: Comm, dev_addr: u64, size: u64, from_device: bool }
        "dev_name: {dev_name} dev_addr={dev_addr:x} size={size} from_device={from_device:?}"
        names "from_device": NO_YES;
    /// Translations are flushed.
    "tlb" "tlb_flush" TlbFlush { reason: i32, pages: i64 } "pages:{pages} reason:{reason:?} ({reason})"
        names "reason": FLUSHES;
    /// A CPU comes to a kprobe.
    "kprobes" "kprobe" Kprobe {
        /// The probe's name and its place, as a line of `trace` has them.
        buf: (),
    } "{buf}";
    /// A signal is sent to a process or a thread. Linux also records the result here.
    "signal" "signal_generate" SignalGenerate {
        sig: i32, errno: i32, code: i32, comm: Comm, pid: Pid, group: i32,
    } "sig={sig} errno={errno} code={code} comm={comm} pid={pid} grp={group}";
    /// A signal's action begins.
    "signal" "signal_deliver" SignalDeliver { sig: i32, errno: i32, code: i32, sa_handler: u64, sa_flags: u64 }
        "sig={sig} errno={errno} code={code} sa_handler={sa_handler:x} sa_flags={sa_flags:x}";
}
