//! A disk that counts its requests: /proc/diskstats and /sys/block/DISK/stat.
//!
//! A request is counted at its end, failed ones too. A transfer of more than [`MAX_TRANSFER`] bytes
//! counts as the requests that the driver makes of it where memory is not fragmented, and a
//! transfer of no bytes as none.

use core::array;
use core::fmt::{self, Display, Formatter};

use freehold_bounce::{Original, OriginalMut};
use freehold_virtio::block::MAX_TRANSFER;
use freehold_virtio::{BlockDevice, BlockError, SECTOR_SIZE, Sleep};

use crate::host::Disk;
use crate::sync::SpinLock;
use crate::time;

const NS_PER_MS: u64 = 1_000_000;

/// Sums of one kind of requests that have ended.
#[derive(Clone, Copy, Default, Debug)]
struct RequestCounts {
    requests: u64,
    sectors: u64,
    /// Nanoseconds from each request's start to its end, summed.
    time: u64,
}

/// Requests of a disk since it was plugged in.
#[derive(Clone, Copy, Default, Debug)]
pub struct DiskCounts {
    read: RequestCounts,
    written: RequestCounts,
    flushed: RequestCounts,
    /// Requests that have not ended.
    in_flight: u64,
    /// Nanoseconds with at least one request that had not ended.
    busy: u64,
    /// Start of the current stretch of such time.
    busy_since: u64,
    /// Nanoseconds × requests that had not ended.
    weighted: u64,
    /// The time up to which `weighted` is summed.
    weighted_until: u64,
}

impl DiskCounts {
    fn begin(&mut self, now: u64) {
        if self.in_flight == 0 {
            self.busy_since = now;
        }
        self.weigh(now);
        self.in_flight += 1;
    }

    fn end(&mut self, now: u64) {
        self.weigh(now);
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.busy += now - self.busy_since;
        }
    }

    fn weigh(&mut self, now: u64) {
        self.weighted += (now - self.weighted_until) * self.in_flight;
        self.weighted_until = now;
    }

    /// Adds the time of requests that have not ended.
    fn until(mut self, now: u64) -> Self {
        self.weigh(now);
        if self.in_flight > 0 {
            self.busy += now - self.busy_since;
        }
        self
    }

    /// Returns the figures in Linux' order; times are in milliseconds
    /// (Documentation/admin-guide/iostats.rst). No request is merged with another, and none
    /// discards.
    fn figures(&self) -> [u64; 17] {
        let Self { read, written, flushed, in_flight, busy, weighted, .. } = *self;
        let [reading, writing, flushing, busy, weighted] =
            [read.time, written.time, flushed.time, busy, weighted].map(|time| time / NS_PER_MS);
        let read = [read.requests, 0, read.sectors, reading];
        let written = [written.requests, 0, written.sectors, writing];
        let rest = [in_flight, busy, weighted, 0, 0, 0, 0, flushed.requests, flushing];
        let mut figures = read.into_iter().chain(written).chain(rest);
        array::from_fn(|_| figures.next().unwrap_or_default())
    }
}

/// Writes the figures, each as wide as the format says.
impl Display for DiskCounts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or(0);
        for (place, figure) in self.figures().into_iter().enumerate() {
            let gap = if place == 0 { "" } else { " " };
            write!(f, "{gap}{figure:width$}")?;
        }
        Ok(())
    }
}

/// A disk whose requests are counted.
pub(super) struct CountedDisk {
    device: Disk,
    counts: SpinLock<DiskCounts>,
}

impl CountedDisk {
    pub(super) fn new(device: Disk) -> Self {
        Self { device, counts: SpinLock::new(DiskCounts::default()) }
    }

    /// Returns the counts up to now.
    pub(super) fn counts(&self) -> DiskCounts {
        let mut now = DiskCounts::default();
        self.locked(|counts, time| now = counts.until(time));
        now
    }

    /// Calls `f` with the counts and the time, which does not decrease from call to call. Returns
    /// the time.
    fn locked(&self, f: impl FnOnce(&mut DiskCounts, u64)) -> u64 {
        let mut counts = self.counts.lock();
        let now = time::now();
        f(&mut counts, now);
        now
    }

    /// Makes a request of so many bytes, and counts it as `of`.
    fn counted(
        &self,
        bytes: usize,
        of: fn(&mut DiskCounts) -> &mut RequestCounts,
        request: impl FnOnce(&dyn BlockDevice) -> Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        let begun = self.locked(DiskCounts::begin);
        let result = request(&*self.device);
        self.locked(|counts, now| {
            counts.end(now);
            let sums = of(counts);
            sums.requests += bytes.div_ceil(MAX_TRANSFER).max(1) as u64;
            sums.sectors += (bytes / SECTOR_SIZE) as u64;
            sums.time += now - begun;
        });
        result
    }
}

impl BlockDevice for CountedDisk {
    fn timeout_ms(&self) -> u32 {
        self.device.timeout_ms()
    }
    fn set_timeout_ms(&self, limit: u32) {
        self.device.set_timeout_ms(limit);
    }
    fn sectors(&self) -> u64 {
        self.device.sectors()
    }
    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }
    fn read(&self, sector: u64, to: &mut dyn OriginalMut, sleep: Sleep) -> Result<(), BlockError> {
        let bytes = to.length();
        if bytes == 0 {
            return self.device.read(sector, to, sleep);
        }
        self.counted(bytes, |counts| &mut counts.read, |device| device.read(sector, to, sleep))
    }
    fn write(&self, sector: u64, from: &dyn Original, sleep: Sleep) -> Result<(), BlockError> {
        let bytes = from.length();
        if bytes == 0 {
            return self.device.write(sector, from, sleep);
        }
        self.counted(bytes, |counts| &mut counts.written, |device| device.write(sector, from, sleep))
    }
    fn flush(&self, sleep: Sleep) -> Result<(), BlockError> {
        self.counted(0, |counts| &mut counts.flushed, |device| device.flush(sleep))
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn time_is_busy_once_and_weighted_by_the_requests_that_are_under_way() {
        let mut counts = DiskCounts::default();
        let ms = |ms: u64| ms * NS_PER_MS;
        counts.begin(ms(10));
        counts.begin(ms(20));
        counts.end(ms(40));
        assert_eq!(counts.until(ms(50)).to_string(), "0 0 0 0 0 0 0 0 1 40 60 0 0 0 0 0 0");
        counts.end(ms(50));
        counts.begin(ms(100));
        counts.end(ms(105));
        assert_eq!(counts.until(ms(200)).to_string(), "0 0 0 0 0 0 0 0 0 45 65 0 0 0 0 0 0");
    }
}
