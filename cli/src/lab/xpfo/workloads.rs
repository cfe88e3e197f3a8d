//! The programs that the experiment runs.

/// A program that runs in the VM.
#[derive(Clone, Copy)]
pub struct Workload {
    pub name: &'static str,
    pub cpus: u32,
    /// Programs of the host that it needs, besides busybox.
    pub needs: &'static [&'static str],
    /// An added program is named without its path.
    script: &'static str,
}

const COMPILER: &str = "/usr/lib/gcc/x86_64-linux-gnu/12/cc1";

pub const SHELL: Workload = Workload {
    name: "shell",
    cpus: 1,
    needs: &[],
    script: "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo $i >/tmp/f$i; busybox cat /tmp/f$i >/dev/null; done; busybox ls -l /tmp | busybox sort | busybox md5sum",
};
const IDLE: Workload = Workload {
    name: "idle",
    cpus: 1,
    needs: &[],
    script: "i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo $i >/tmp/f$i; busybox cat /tmp/f$i /proc/meminfo >/dev/null; busybox sleep 0.05; done",
};
const SERVER: Workload = Workload {
    name: "server",
    cpus: 1,
    needs: &["/usr/bin/redis-server", "/usr/bin/redis-benchmark"],
    // A stock Linux has its loopback interface down.
    script: "busybox ifconfig lo 127.0.0.1 up; >/tmp/log; redis-server --save '' --port 6379 >/tmp/log & until busybox grep -q Ready /tmp/log; do busybox sleep 0.01; done; redis-benchmark -q -n 3000 -c 8 -d 1000 -r 1000 -t set,get >/tmp/told || exit; kill $!; wait",
};

pub const WORKLOADS: [Workload; 8] = [
    SHELL,
    IDLE,
    SERVER,
    Workload {
        name: "exec storm",
        cpus: 1,
        needs: &[],
        script: "i=0; while [ $i -lt 300 ]; do i=$((i+1)); busybox true; done",
    },
    Workload {
        name: "tar, gzip -1",
        cpus: 1,
        needs: &[],
        script: "mkdir /tmp/d; i=0; while [ $i -lt 20 ]; do i=$((i+1)); busybox head -c 20000 /proc/self/exe >/tmp/d/$i || exit; done; busybox tar c /tmp/d 2>/dev/null | busybox gzip -1 | busybox md5sum",
    },
    Workload {
        name: "sqlite",
        cpus: 1,
        needs: &["/usr/bin/sqlite3"],
        script: "sqlite3 /tmp/db 'create table t(a integer primary key, b text); with recursive c(x) as (select 1 union all select x+1 from c where x<6000) insert into t select x, hex(x*x) from c; select count(*), sum(length(b)) from t;'",
    },
    Workload {
        name: "gcc -O1",
        cpus: 1,
        needs: &[COMPILER],
        script: "i=0; while [ $i -lt 150 ]; do i=$((i+1)); echo \"int f$i(int *p, int n) { int s = $i; for (int i = 0; i < n; i++) s += p[i] * $i; return s; }\"; done >/tmp/a.c; cc1 -quiet -O1 /tmp/a.c -o /tmp/a.s; busybox md5sum /tmp/a.s",
    },
    Workload {
        name: "make -j4",
        cpus: 4,
        needs: &["/usr/bin/make", COMPILER],
        script: "cd /tmp; all=; i=0; while [ $i -lt 12 ]; do i=$((i+1)); all=\"$all $i.s\"; echo \"int f$i(int *p, int n) { int s = $i; for (int i = 0; i < n; i++) s += p[i] * $i; return s; }\" >$i.c; done; printf 'all:%s\\n%%.s: %%.c\\n\\tcc1 -quiet -O1 $< -o $@\\n' \"$all\" >Makefile; make -s -j4; busybox cat *.s | busybox md5sum",
    },
];

/// Workloads whose rates are measured with several TLBs: the guest tells the time that they take.
pub const RATES: [Workload; 3] = [
    IDLE,
    SERVER,
    Workload {
        name: "compile",
        cpus: 1,
        needs: &[COMPILER],
        script: "i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo \"int f$i(int *p, int n) { int s = $i; for (int i = 0; i < n; i++) s += p[i] * $i; return s; }\"; done >/tmp/a.c; cc1 -quiet -O1 /tmp/a.c -o /tmp/a.s; busybox md5sum /tmp/a.s",
    },
];

const CLOCK: &str = "busybox sed 's/^/uptime /' /proc/uptime";
const SHOOTDOWNS: &str = "busybox grep TLB: /proc/interrupts";

impl Workload {
    /// Returns the script, with programs named by their paths, between two readings of the clock.
    pub fn script(&self) -> String {
        let script = self.needs.iter().fold(self.script.to_owned(), |script, path| {
            let name = path.rsplit('/').next().unwrap_or(path);
            script.replace(&format!("{name} "), &format!("{path} "))
        });
        if self.cpus > 1 {
            return format!("{SHOOTDOWNS}; {script}; {SHOOTDOWNS}");
        }
        format!("{CLOCK}; {script}; {CLOCK}")
    }
}

/// Returns the nanoseconds between the guest's readings of the clock.
pub fn elapsed(output: &str) -> Option<u64> {
    let reading =
        |line: &str| -> Option<f64> { line.strip_prefix("uptime ")?.split_whitespace().next()?.parse().ok() };
    let mut readings = output.lines().filter_map(reading);
    let (first, last) = (readings.next()?, readings.next_back()?);
    Some(((last - first) * 1e9) as u64)
}

/// Returns the interrupts for flushes on other CPUs between the guest's readings.
pub fn shootdowns(output: &str) -> Option<u64> {
    let reading = |line: &str| -> Option<u64> {
        let counts = line.trim_start().strip_prefix("TLB:")?.split_whitespace();
        Some(counts.map_while(|count| count.parse::<u64>().ok()).sum())
    };
    let mut readings = output.lines().filter_map(reading);
    let (first, last) = (readings.next()?, readings.next_back()?);
    Some(last - first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_by_their_paths() {
        let script = WORKLOADS.iter().find(|workload| workload.cpus == 4).expect("one").script();
        assert!(script.contains("/usr/bin/make -s -j4") && script.contains("\\t/usr/lib/gcc"), "{script}");
        assert!(!script.contains("/usr/bin//"), "{script}");
    }

    #[test]
    fn the_time_is_that_between_two_readings() {
        assert_eq!(elapsed("uptime 1.25 0.5\nmore\nuptime 3.25 0.75\n"), Some(2_000_000_000));
        assert_eq!(elapsed("uptime 1.25 0.5\n"), None);
    }

    #[test]
    fn shootdowns_are_those_of_all_cpus_between_two_readings() {
        let reading = |first, second| format!(" TLB: {first:10} {second:10}   TLB shootdowns\n");
        assert_eq!(shootdowns(&format!("{}x\n{}", reading(1, 2), reading(4, 9))), Some(10));
        assert_eq!(shootdowns(&reading(1, 2)), None);
    }
}
