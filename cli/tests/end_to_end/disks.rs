//! Disks that fail: what is told, to whom and how often; and that nobody is held up for it.

use crate::common::*;

/// Runs guest/conformance/broken-disk on a disk of 16 MiB with these rules of QEMU's blkdebug.
#[track_caller]
fn broken(way: &str, rules: &str) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (mut command, disk) = run_with_failing_disk(&folder, 16 << 20, rules);
    let memory = if kernel() == "linux" { "128M" } else { "64M" };
    command.args(["--memory", memory, "--disk", text(&disk)]);
    promises(command, &[], &["broken-disk", way, "/dev/vda"], &[]);
}

/// The rule that matches no sector takes the place of the one that fails.
#[test]
fn writers_go_on_where_every_second_write_fails_and_each_open_file_is_told_once() {
    broken(
        "writes",
        "set-state.0.event=write_aio,file.set-state.0.state=1,file.set-state.0.new_state=2,\
         file.set-state.1.event=write_aio,file.set-state.1.state=2,file.set-state.1.new_state=1,\
         file.inject-error.0.event=write_aio,file.inject-error.0.state=2,file.inject-error.0.iotype=write,\
         file.inject-error.1.event=write_aio,file.inject-error.1.state=1,file.inject-error.1.iotype=write,\
         file.inject-error.1.sector=1000000000",
    );
}

#[test]
fn writers_go_on_where_every_write_fails() {
    broken("all-writes", "inject-error.0.event=none,file.inject-error.0.iotype=write");
}

#[test]
fn what_cannot_be_read_is_an_error_each_time_and_can_be_written() {
    broken("reads", "inject-error.0.event=none,file.inject-error.0.iotype=read");
}

#[test]
fn a_disk_that_cannot_promise_to_keep_what_it_has_fails_each_fsync() {
    broken("flushes", "inject-error.0.event=none,file.inject-error.0.iotype=flush");
}
