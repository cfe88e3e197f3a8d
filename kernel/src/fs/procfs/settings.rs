//! /proc/sys: settings to read, and the few that can be changed. A setting without effect here
//! cannot be written: it fails with `EACCES` instead of pretending success.

use core::fmt::{self, Display, Formatter};
use core::sync::atomic::Ordering;

use freehold_collections::Arc;
use freehold_machine::Entropy;

use crate::fs::epoll;
use crate::fs::generated::{Generate, Text};
use crate::fs::leases;
use crate::fs::namespace;
use crate::fs::notify;
use crate::fs::pipe::{self, share};
use crate::fs::pseudo::PseudoDir;
use crate::fs::requests;
use crate::fs::table;
use crate::fs::userfault;
use crate::hw::Hardware;
use crate::ipc::limits;
use crate::mem::{hugetlb, mirrors, stats};
use crate::sched::real_time;
use crate::socket::memory::SocketAccount;
use crate::task::dump::pattern;
use crate::task::exec;
use crate::task::inspect;
use crate::task::reboot::KEY_RESTARTS;
use crate::task::userns::{self, IdKind, NamespaceKind};
use crate::task::uts::{self, Name};
use crate::task::{self, Capability, Pid, registry};
use crate::tty::pty;
use crate::{Errno, Result};

/// Parses the number that a program wrote, with blanks around it.
pub(super) fn parse_number(bytes: &[u8]) -> Result<u64> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\0').parse().map_err(|_| Errno::EINVAL)
}

struct Named(Name);

impl Generate for Named {
    fn show(&self, text: &mut Text) -> Result<()> {
        text.push(task::current().process().namespaces().uts.names().bytes(self.0));
        text.push(b"\n");
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let line = bytes.split(|&byte| byte == b'\n' || byte == 0).next().unwrap_or_default();
        let uts = task::current().process().namespaces().uts.clone();
        if !task::may_in(uts.head().owner(), Capability::SysAdmin) {
            return Err(Errno::EPERM);
        }
        uts.set_name(self.0, line)
    }
}

/// Parses the number that a program wrote: decimal, or hexadecimal after 0x.
pub(super) fn parse_mask(bytes: &[u8]) -> Result<u64> {
    let text = bytes.trim_ascii();
    let Some(digits) = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X")) else {
        return parse_number(bytes);
    };
    let digits = core::str::from_utf8(digits).map_err(|_| Errno::EINVAL)?;
    u64::from_str_radix(digits, 16).map_err(|_| Errno::EINVAL)
}

/// The pattern for names of core files.
struct CorePattern;

impl Generate for CorePattern {
    fn show(&self, text: &mut Text) -> Result<()> {
        text.push(&pattern::pattern());
        text.push(b"\n");
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        pattern::set_pattern(bytes)
    }
}

/// A number that can be read and changed.
struct Number {
    get: fn() -> u64,
    set: fn(u64) -> Result<()>,
}

impl Generate for Number {
    fn show(&self, text: &mut Text) -> Result<()> {
        writeln!(text, "{}", (self.get)());
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        (self.set)(parse_number(bytes)?)
    }
}

const RANDOMNESS: Number = Number { get: exec::randomness, set: exec::set_randomness };

/// kernel.sched_rt_runtime_us: microseconds, or -1.
struct RealTimeLimit;

impl Generate for RealTimeLimit {
    fn show(&self, text: &mut Text) -> Result<()> {
        writeln!(text, "{}", real_time::runtime_limit());
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let limit = match bytes.trim_ascii().strip_prefix(b"-") {
            Some(negative) => -i64::try_from(parse_number(negative)?).map_err(|_| Errno::EINVAL)?,
            None => i64::try_from(parse_number(bytes)?).map_err(|_| Errno::EINVAL)?,
        };
        real_time::set_runtime_limit(limit)
    }
}

/// vm.compact_memory: writing 1 compacts all nodes.
struct CompactMemory;

impl Generate for CompactMemory {
    fn show(&self, _text: &mut Text) -> Result<()> {
        Err(Errno::EINVAL)
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        if parse_number(bytes)? != 1 {
            return Err(Errno::EINVAL);
        }
        crate::mem::evacuate::compact_all();
        Ok(())
    }
}

/// vm.drop_caches: bit 0 drops clean pages of disks that no program maps. The kernel keeps no
/// unused objects (bit 1), and bit 2 suppresses a log message.
struct DropCaches;

impl Generate for DropCaches {
    fn show(&self, text: &mut Text) -> Result<()> {
        text.push(b"0\n");
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let what = parse_number(bytes)?;
        if !(1..=4).contains(&what) {
            return Err(Errno::EINVAL);
        }
        if what & 1 != 0 {
            crate::block::drop_clean();
            crate::stored::drop_clean();
        }
        Ok(())
    }
}

/// A UUID of version 4.
struct Uuid(u128);

impl Uuid {
    fn of(bits: [u64; 2]) -> Self {
        let bits = u128::from(bits[0]) << 64 | u128::from(bits[1]);
        Self(bits & !(0xf << 76 | 0x3 << 62) | (0x4 << 76 | 0x2 << 62))
    }
}

impl Display for Uuid {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let part = |from: u32, bits: u32| self.0 >> from & ((1 << bits) - 1);
        let (first, second, third) = (part(96, 32), part(80, 16), part(64, 16));
        write!(f, "{first:08x}-{second:04x}-{third:04x}-{:04x}-{:012x}", part(48, 16), part(0, 48))
    }
}

fn random_pair() -> [u64; 2] {
    [Hardware.random_u64(), Hardware.random_u64()]
}

fn threads_max(out: &mut Text) -> Result<()> {
    writeln!(out, "{}", registry::tasks_max());
    Ok(())
}

/// Adds the settings of the machine's end.
fn fill_ends(kernel: &PseudoDir) {
    let get = || KEY_RESTARTS.load(Ordering::Relaxed).into();
    let set = |restarts: u64| {
        KEY_RESTARTS.store(u32::try_from(restarts).map_err(|_| Errno::EINVAL)?, Ordering::Relaxed);
        Ok(())
    };
    kernel.generated("ctrl-alt-del", 0o644, Number { get, set });
    kernel.constant("panic", "0");
    kernel.constant("panic_on_oops", "1");
    kernel.constant("kexec_load_disabled", "1");
    kernel.constant("hung_task_timeout_secs", "0");
    kernel.constant("watchdog", "0");
}

/// Adds /proc/sys to `root`, except the settings of [`fill_rest`].
pub(super) fn fill(root: &Arc<PseudoDir>) {
    let kernel = root.dirs("sys/kernel");
    kernel.constant("ostype", uts::SYSTEM);
    kernel.constant("osrelease", uts::RELEASE);
    kernel.constant("version", uts::VERSION);
    kernel.generated("hostname", 0o644, Named(Name::Host));
    kernel.generated("domainname", 0o644, Named(Name::Domain));
    let get = || registry::pid_limit().into();
    kernel.generated("pid_max", 0o644, Number { get, set: registry::set_pid_limit });
    kernel.generated("sched_rt_runtime_us", 0o644, RealTimeLimit);
    kernel.generated(
        "sched_rt_period_us",
        0o644,
        Number { get: real_time::period, set: real_time::set_period },
    );
    kernel.constant("sched_rr_timeslice_ms", "100");
    kernel.generated("ns_last_pid", 0o666, LastPid);
    kernel.file("threads-max", threads_max);
    kernel.constant("cap_last_cap", "40");
    kernel.constant("ngroups_max", "65536");
    kernel.constant("overflowuid", "65534");
    kernel.constant("overflowgid", "65534");
    fill_core(&kernel);
    kernel.constant("tainted", "0");
    kernel.constant("printk", "4\t4\t1\t7");
    kernel.constant("dmesg_restrict", "1");
    kernel.constant("kptr_restrict", "1");
    kernel.constant("perf_event_paranoid", "3");
    kernel.constant("numa_balancing", "0");
    fill_ipc(&kernel);
    kernel.generated("randomize_va_space", 0o644, RANDOMNESS);
    fill_ends(&kernel);
    kernel.constant("sysrq", "0");
    kernel.constant("core_pipe_limit", "0");
    kernel.constant("unprivileged_bpf_disabled", "2");
    kernel.constant("modules_disabled", "1");
    let pty = root.dirs("sys/kernel/pty");
    pty.constant("max", pty::MOST);
    pty.constant("reserve", "0");
    pty.file("nr", |out| {
        writeln!(out, "{}", pty::in_use());
        Ok(())
    });
    let seccomp = root.dirs("sys/kernel/seccomp");
    seccomp.constant("actions_avail", "kill_process kill_thread trap errno user_notif trace log allow");
    let random = root.dirs("sys/kernel/random");
    random.constant("boot_id", Uuid::of(random_pair()));
    random.file("uuid", |out| {
        writeln!(out, "{}", Uuid::of(random_pair()));
        Ok(())
    });
    random.constant("entropy_avail", "256");
    random.constant("poolsize", "256");
    fill_vm(&root.dirs("sys/vm"));
    fill_user(&root.dirs("sys/user"));
}

/// Adds the settings of files.
pub(super) fn fill_rest(root: &Arc<PseudoDir>) {
    let fs = root.dirs("sys/fs");
    fs.constant("file-max", "9223372036854775807");
    fs.generated("nr_open", 0o644, Number { get: table::most, set: table::set_most });
    fs.file("aio-nr", |out| {
        writeln!(out, "{}", requests::taken());
        Ok(())
    });
    let set = |most| {
        requests::set_most(most);
        Ok(())
    };
    fs.generated("aio-max-nr", 0o644, Number { get: requests::most, set });
    fill_pipes(&fs);
    fill_leases(&fs);
    fill_notify(&root.dirs("sys/fs/inotify"), &root.dirs("sys/fs/fanotify"));
    fill_epoll(&root.dirs("sys/fs/epoll"));
    fill_mqueue(&root.dirs("sys/fs/mqueue"));
    for name in ["protected_hardlinks", "protected_symlinks", "protected_fifos", "protected_regular"] {
        fs.constant(name, "0");
    }
    let get = || inspect::after_change().number().into();
    fs.generated("suid_dumpable", 0o644, Number { get, set: inspect::set_after_change });
}

/// Adds the settings of the network, except those of network devices.
pub(super) fn fill_net(root: &Arc<PseudoDir>) {
    let net = &root.dirs("sys/net");
    let core = net.dirs("core");
    core.constant("somaxconn", "4096");
    core.constant("optmem_max", "131072");
    core.constant("netdev_max_backlog", "1000");
    for name in ["wmem_max", "rmem_max", "wmem_default", "rmem_default"] {
        core.constant(name, "212992");
    }
    // The namespace's rights decide about opener and writer: the namespace's root need not own the
    // file.
    net.dirs("ipv4").generated("ping_group_range", 0o666, PingGroups);
    for (name, account) in [("tcp_mem", SocketAccount::Tcp), ("udp_mem", SocketAccount::Udp)] {
        net.dirs("ipv4").generated(name, 0o644, SocketMemory(account));
    }
    net.dirs("unix").constant("max_dgram_qlen", "512");
    fill_ip(&net.dirs("ipv4"));
}

/// Adds settings of IP that TCP uses.
fn fill_ip(v4: &Arc<PseudoDir>) {
    v4.constant("ip_forward", "0");
    v4.constant("ip_default_ttl", "64");
    v4.constant("ip_local_port_range", "32768\t60999");
    v4.constant("ip_nonlocal_bind", "0");
    v4.generated("ip_unprivileged_port_start", 0o666, FirstFreePort);
    v4.constant("tcp_keepalive_time", "7200");
    v4.constant("tcp_keepalive_intvl", "75");
    v4.constant("tcp_keepalive_probes", "9");
    v4.constant("tcp_syncookies", "1");
    v4.constant("tcp_timestamps", "1");
    v4.constant("tcp_window_scaling", "1");
    v4.constant("tcp_sack", "1");
    v4.constant("tcp_fastopen", "0");
    v4.constant("tcp_congestion_control", "cubic");
    v4.constant("tcp_available_congestion_control", "reno cubic");
    v4.constant("tcp_allowed_congestion_control", "reno cubic");
}

/// Adds the settings of mounts and pipes.
fn fill_pipes(fs: &Arc<PseudoDir>) {
    fs.generated("mount-max", 0o644, Number { get: namespace::limit, set: namespace::set_limit });
    fs.generated("pipe-max-size", 0o644, Number { get: pipe::max_size, set: pipe::set_max_size });
    let set = |pages| {
        share::set_soft(pages);
        Ok(())
    };
    fs.generated("pipe-user-pages-soft", 0o644, Number { get: share::soft, set });
    let set = |pages| {
        share::set_hard(pages);
        Ok(())
    };
    fs.generated("pipe-user-pages-hard", 0o644, Number { get: share::hard, set });
}

/// Adds the settings of leases.
fn fill_leases(fs: &Arc<PseudoDir>) {
    let break_time = Number { get: leases::break_seconds, set: leases::set_break_seconds };
    fs.generated("lease-break-time", 0o644, break_time);
    let set = |enabled| {
        leases::set_enabled(enabled);
        Ok(())
    };
    fs.generated("leases-enable", 0o644, Number { get: leases::enabled, set });
}

/// Adds the settings of core files.
fn fill_core(kernel: &Arc<PseudoDir>) {
    kernel.generated("core_pattern", 0o644, CorePattern);
    let uses_pid = Number { get: pattern::uses_pid, set: pattern::set_uses_pid };
    kernel.generated("core_uses_pid", 0o644, uses_pid);
}

/// Adds the settings of memory management.
fn fill_vm(vm: &Arc<PseudoDir>) {
    let overcommit = Number { get: stats::overcommit, set: stats::set_overcommit };
    vm.generated("overcommit_memory", 0o644, overcommit);
    let ratio = Number { get: stats::overcommit_ratio, set: stats::set_overcommit_ratio };
    vm.generated("overcommit_ratio", 0o644, ratio);
    let kbytes = Number { get: stats::overcommit_kbytes, set: stats::set_overcommit_kbytes };
    vm.generated("overcommit_kbytes", 0o644, kbytes);
    let set = |most: u64| {
        let most = usize::try_from(most).ok().filter(|&most| most <= i32::MAX as usize);
        crate::mem::commons().set_max_areas(most.ok_or(Errno::EINVAL)?);
        Ok(())
    };
    let get = || crate::mem::commons().max_areas() as u64;
    vm.generated("max_map_count", 0o644, Number { get, set });
    let get = || mirrors::is_on().into();
    vm.generated("numa_mirror_text", 0o644, Number { get, set: mirrors::set });
    vm.generated("drop_caches", 0o200, DropCaches);
    vm.generated("compact_memory", 0o200, CompactMemory);
    vm.constant("mmap_min_addr", "65536");
    vm.constant("legacy_va_layout", "0");
    let set = |count| hugetlb::set_persistent(count, None);
    vm.generated("nr_hugepages", 0o644, Number { get: hugetlb::persistent, set });
    let (get, set) = (|| crate::mem::commons().huge_pool(None).overcommit, hugetlb::set_overcommit);
    vm.generated("nr_overcommit_hugepages", 0o644, Number { get, set });
    let (get, set) = (|| limits::HUGE_GROUP.get(), |group| limits::HUGE_GROUP.set(group));
    vm.generated("hugetlb_shm_group", 0o644, Number { get, set });
    vm.constant("panic_on_oom", "0");
    vm.constant("oom_kill_allocating_task", "0");
    vm.constant("zone_reclaim_mode", "0");
    vm.constant("vfs_cache_pressure", "100");
    vm.constant("admin_reserve_kbytes", "0");
    vm.constant("user_reserve_kbytes", "0");
    let set = userfault::set_unprivileged;
    vm.generated("unprivileged_userfaultfd", 0o644, Number { get: userfault::unprivileged, set });
    reclaim(vm);
}

/// The last number that the reader's PID namespace assigned. A process with the right to choose
/// numbers there can set it.
struct LastPid;

impl Generate for LastPid {
    fn show(&self, text: &mut Text) -> Result<()> {
        writeln!(text, "{}", registry::last_pid());
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let owner = task::current().process().pid_ns().owner();
        let may = |capability| task::may_in(&owner, capability);
        if !may(Capability::CheckpointRestore) && !may(Capability::SysAdmin) {
            return Err(Errno::EPERM);
        }
        let last = Pid::try_from(parse_number(bytes)?).ok().filter(|&last| last < registry::PID_MAX);
        registry::set_last_pid(last.ok_or(Errno::EINVAL)?);
        Ok(())
    }
}

/// net.ipv4.tcp_mem and udp_mem: three numbers of pages. If fewer are written, the others stay.
struct SocketMemory(SocketAccount);

impl Generate for SocketMemory {
    fn show(&self, text: &mut Text) -> Result<()> {
        let [low, pressure, high] = self.0.limits();
        writeln!(text, "{low}\t{pressure}\t{high}");
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let mut limits = self.0.limits();
        let words = bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        for (limit, word) in limits.iter_mut().zip(words) {
            *limit = usize::try_from(parse_number(word)?).map_err(|_| Errno::EINVAL)?;
        }
        self.0.set_limits(limits);
        Ok(())
    }
}

/// net.ipv4.ip_unprivileged_port_start of the reader's network namespace.
struct FirstFreePort;

impl Generate for FirstFreePort {
    fn show(&self, text: &mut Text) -> Result<()> {
        let network = task::current().process().namespaces().network.clone();
        writeln!(text, "{}", network.first_free_port());
        Ok(())
    }

    fn may_write(&self) -> Result<()> {
        may_set_network()
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        may_set_network()?;
        let first = u32::try_from(parse_number(bytes)?).ok().filter(|&first| first <= 1 << 16);
        let network = task::current().process().namespaces().network.clone();
        network.set_first_free_port(first.ok_or(Errno::EINVAL)?);
        Ok(())
    }
}

/// Whether the caller may change its network namespace.
pub(super) fn may_set_network() -> Result<()> {
    let network = task::current().process().namespaces().network.clone();
    let owner = network.head().owner();
    let is_root = task::with_current(|task| task.with_credentials(|own| Some(own.euid) == owner.root()));
    if is_root || task::may_in(owner, Capability::NetAdmin) { Ok(()) } else { Err(Errno::EACCES) }
}

/// net.ipv4.ping_group_range of the reader's network namespace.
struct PingGroups;

impl Generate for PingGroups {
    fn show(&self, text: &mut Text) -> Result<()> {
        let groups = task::current().process().namespaces().network.ping_groups();
        let shown = |group| task::shown_ids(0, group).1;
        writeln!(text, "{}\t{}", shown(*groups.start()), shown(*groups.end()));
        Ok(())
    }

    fn may_write(&self) -> Result<()> {
        may_set_network()
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        may_set_network()?;
        let network = task::current().process().namespaces().network.clone();
        let mut words = bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut next = || parse_number(words.next().ok_or(Errno::EINVAL)?);
        let (first, last) = (next()?, next()?);
        let (Ok(first), Ok(last)) = (u32::try_from(first), u32::try_from(last)) else {
            return Err(Errno::EINVAL);
        };
        if first > last {
            network.set_ping_groups(1..=0);
            return Ok(());
        }
        let kernel = |group| task::kernel_id(IdKind::Group, group);
        network.set_ping_groups(kernel(first)?..=kernel(last)?);
        Ok(())
    }
}

/// Adds the largest numbers of namespaces of each kind.
fn fill_user(user: &Arc<PseudoDir>) {
    const NAMES: [(&str, NamespaceKind); 8] = [
        ("max_cgroup_namespaces", NamespaceKind::Cgroup),
        ("max_ipc_namespaces", NamespaceKind::Ipc),
        ("max_mnt_namespaces", NamespaceKind::Mount),
        ("max_net_namespaces", NamespaceKind::Network),
        ("max_pid_namespaces", NamespaceKind::Pid),
        ("max_time_namespaces", NamespaceKind::Time),
        ("max_user_namespaces", NamespaceKind::User),
        ("max_uts_namespaces", NamespaceKind::Uts),
    ];
    for (name, kind) in NAMES {
        user.generated(name, 0o644, NamespaceLimit(kind));
    }
}

/// The largest number of namespaces of a kind.
struct NamespaceLimit(NamespaceKind);

impl Generate for NamespaceLimit {
    fn show(&self, text: &mut Text) -> Result<()> {
        writeln!(text, "{}", userns::limit(self.0));
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        if !task::may(Capability::SysResource) {
            return Err(Errno::EPERM);
        }
        userns::set_limit(self.0, parse_number(bytes)?)
    }
}

/// Fills a directory with limits that root may change.
macro_rules! limits_in {
    ($dir:ident, $module:ident: $($name:literal => $limit:ident),*) => {
        $(
            let (get, set) = (|| $module::$limit.get(), |value| $module::$limit.set(value));
            $dir.generated($name, 0o644, Number { get, set });
        )*
    };
}

/// Adds the limits of inotify and fanotify.
fn fill_notify(inotify: &Arc<PseudoDir>, fanotify: &Arc<PseudoDir>) {
    limits_in!(
        inotify, notify: "max_queued_events" => MAX_QUEUED_EVENTS,
        "max_user_instances" => MAX_USER_INSTANCES, "max_user_watches" => MAX_USER_WATCHES
    );
    limits_in!(
        fanotify, notify: "max_queued_events" => MAX_GROUP_EVENTS,
        "max_user_groups" => MAX_USER_GROUPS, "max_user_marks" => MAX_USER_MARKS
    );
}

/// Adds the limit of epoll.
fn fill_epoll(dir: &Arc<PseudoDir>) {
    limits_in!(dir, epoll: "max_user_watches" => MAX_USER_WATCHES);
}

/// Adds the limits of POSIX message queues.
fn fill_mqueue(mqueue: &Arc<PseudoDir>) {
    limits_in!(
        mqueue, limits: "queues_max" => MQ_QUEUES_MAX, "msg_max" => MQ_MSG_MAX, "msgsize_max" => MQ_MSGSIZE_MAX,
        "msg_default" => MQ_MSG_DEFAULT, "msgsize_default" => MQ_MSGSIZE_DEFAULT
    );
}

/// Adds the limits of System V IPC.
fn fill_ipc(kernel: &Arc<PseudoDir>) {
    limits_in!(
        kernel, limits: "shmmax" => SHMMAX, "shmall" => SHMALL, "shmmni" => SHMMNI,
        "msgmax" => MSGMAX, "msgmnb" => MSGMNB, "msgmni" => MSGMNI
    );
    kernel.generated("sem", 0o644, SemaphoreLimits);
    super::sysvipc::fill_next_ids(kernel);
    kernel.constant("shm_rmid_forced", "0");
}

/// kernel.sem: semaphores per set, semaphores of all sets, operations per call, sets.
struct SemaphoreLimits;

impl SemaphoreLimits {
    const ALL: [&limits::Limit; 4] = [&limits::SEMMSL, &limits::SEMMNS, &limits::SEMOPM, &limits::SEMMNI];
}

impl Generate for SemaphoreLimits {
    fn show(&self, text: &mut Text) -> Result<()> {
        let [a, b, c, d] = Self::ALL.map(limits::Limit::get);
        writeln!(text, "{a}\t{b}\t{c}\t{d}");
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let words = bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        for (limit, word) in Self::ALL.iter().zip(words) {
            limit.set(parse_number(word)?)?;
        }
        Ok(())
    }
}

/// Adds the settings of reclaim.
fn reclaim(vm: &Arc<PseudoDir>) {
    use crate::mem::{commons, reclaim};
    let swappiness = Number { get: reclaim::swappiness, set: reclaim::set_swappiness };
    vm.generated("swappiness", 0o644, swappiness);
    let get = || u64::from(commons().swap().ahead());
    let set = |log2: u64| {
        let log2 = u32::try_from(log2).ok().filter(|&log2| log2 <= 31).ok_or(Errno::EINVAL)?;
        commons().swap().set_ahead(log2);
        Ok(())
    };
    vm.generated("page-cluster", 0o644, Number { get, set });
    let min_free = Number { get: reclaim::min_free_kib, set: reclaim::set_min_free_kib };
    vm.generated("min_free_kbytes", 0o644, min_free);
}

#[cfg(test)]
mod tests {
    use freehold_collections::try_format;

    use super::*;

    /// A program writes a number, with the line feed that echo adds; any other text is refused.
    #[test]
    fn written_numbers_are_whole() {
        assert_eq!(parse_number(b" 2\n"), Ok(2));
        for bad in [b"-1".as_slice(), b"", b"x", b"1 1", b"99999999999999999999", b"\xff"] {
            assert_eq!(parse_number(bad), Err(Errno::EINVAL));
        }
    }

    /// A UUID's version says that it is random.
    #[test]
    fn uuids_have_version_and_variant() {
        let text = |bits| try_format!("{}", Uuid::of(bits)).unwrap();
        assert_eq!(text([0, 0]), "00000000-0000-4000-8000-000000000000");
        assert_eq!(text([u64::MAX; 2]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
