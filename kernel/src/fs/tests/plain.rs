//! Contents in plain memory, page by page, like the kernel's contents in frames.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

use crate::fs::content::{ContentSource, FileContent, Punch};
use crate::sync::SpinLock;
use crate::user::{Sink, Source};
use crate::{Errno, Result};

const PAGE: u64 = 4096;

pub struct PlainSource {
    capacity: u64,
}

impl PlainSource {
    pub fn new(capacity: u64) -> Arc<Self> {
        Arc::new(Self { capacity })
    }
}

impl ContentSource for PlainSource {
    fn empty(&self) -> Result<Arc<dyn FileContent>> {
        Ok(Arc::new(Plain(SpinLock::new(Inner::default()))))
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }
}

#[derive(Default)]
struct Inner {
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

struct Plain(SpinLock<Inner>);

impl Inner {
    fn page(&mut self, index: u64) -> &mut Vec<u8> {
        self.pages.entry(index).or_insert_with(|| vec![0; PAGE as usize])
    }

    fn clear(&mut self, range: Range<u64>) {
        let whole = range.start.div_ceil(PAGE)..range.end / PAGE;
        self.pages.retain(|index, _| !whole.contains(index));
        for (index, page) in &mut self.pages {
            let base = index * PAGE;
            let from = range.start.clamp(base, base + PAGE) - base;
            let to = range.end.clamp(base, base + PAGE) - base;
            if from < to {
                page[from as usize..to as usize].fill(0);
            }
        }
    }
}

impl FileContent for Plain {
    fn size(&self) -> u64 {
        self.0.lock().size
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize> {
        let inner = self.0.lock();
        let mut done = 0;
        while sink.remaining() > 0 && offset + done < inner.size {
            let at = offset + done;
            let within = (at % PAGE) as usize;
            let len = (PAGE as usize - within).min((inner.size - at) as usize);
            let zero = vec![0; PAGE as usize];
            let page = inner.pages.get(&(at / PAGE)).unwrap_or(&zero);
            done += sink.put(&page[within..within + len])? as u64;
        }
        Ok(done as usize)
    }

    fn write_at(&self, offset: u64, source: &mut dyn Source) -> Result<usize> {
        let mut inner = self.0.lock();
        let mut done = 0;
        while source.remaining() > 0 {
            let at = offset + done;
            let within = (at % PAGE) as usize;
            let n = source.take(&mut inner.page(at / PAGE)[within..])? as u64;
            done += n;
            inner.size = inner.size.max(at + n);
        }
        Ok(done as usize)
    }

    fn resize(&self, size: u64) -> Result<()> {
        let mut inner = self.0.lock();
        if size < inner.size {
            inner.clear(size..u64::MAX / PAGE * PAGE);
        }
        inner.size = size;
        Ok(())
    }

    fn punch(&self, range: Range<u64>, how: Punch) -> Result<()> {
        self.0.lock().clear(range.clone());
        if how == Punch::Zeroes { self.allocate(range) } else { Ok(()) }
    }

    fn allocate(&self, range: Range<u64>) -> Result<()> {
        if range.end > 1 << 32 {
            return Err(Errno::ENOMEM);
        }
        let mut inner = self.0.lock();
        for index in range.start / PAGE..range.end.div_ceil(PAGE) {
            inner.page(index);
        }
        Ok(())
    }

    fn seek_data(&self, offset: u64) -> Option<u64> {
        let inner = self.0.lock();
        let (&index, _) = inner.pages.range(offset / PAGE..).next()?;
        Some((index * PAGE).max(offset)).filter(|&at| at < inner.size)
    }

    fn seek_hole(&self, offset: u64) -> u64 {
        let inner = self.0.lock();
        let mut index = offset / PAGE;
        while inner.pages.contains_key(&index) {
            index += 1;
        }
        (index * PAGE).max(offset).min(inner.size)
    }

    fn held(&self) -> u64 {
        self.0.lock().pages.len() as u64 * PAGE
    }
}
