//! Every order of the steps by which a page of shared memory is swapped out and in, with the real
//! cache and the real slots. Each step is the work under one hold of a lock, or work without any
//! lock.

use std::sync::Arc;
use std::vec::Vec;

use freehold_frame::{AccountId, Frame, Held as _, NodePolicy, PageCache as CacheKind};

use super::*;
use crate::swap::Wrote;

type Held = Frame<CacheKind, ModelFrames>;

struct Page {
    commons: Arc<Commons<ModelFrames>>,
    disk: Arc<Disk>,
    cache: Arc<Cache>,
    /// Whether it was cut off.
    cut: bool,
    /// The byte that it should have.
    byte: u8,
}

impl Page {
    /// Returns a page in memory, with byte 1.
    fn new(s: &Swapping) -> Self {
        let cache = Cache::new(s.world.frames);
        s.world.commons.list(&cache);
        write(&cache, 0, &[1; PAGE_SIZE]);
        Self { commons: s.world.commons.clone(), disk: s.disk.clone(), cache, cut: false, byte: 1 }
    }

    fn cut_off(&mut self) {
        self.cache.truncate(0).unwrap();
        self.cache.set_size_grow(PAGE);
        (self.cut, self.byte) = (true, 0);
    }
}

/// Actor on the page, and how far it has come.
enum Actor {
    /// Swaps the page out: begin, write, end.
    Out(Out),
    /// Swaps the page in if necessary, and stores this byte: get, or enter; read; put; get; store.
    Store(u8, Store),
    /// Cuts the page off the file.
    Cut,
    /// Cuts the page off, then writes a new page with this byte.
    Rewrite(u8, Rewrite),
}

enum Out {
    Begin,
    Write(SwapPlace, Held),
    End(SwapPlace, Held),
    Over,
}

enum Rewrite {
    Cut,
    Write,
}

enum Store {
    Begin,
    Read(Vec<SwapPlace>),
    Put(Vec<SwapPlace>, Vec<Held>),
    Get,
    /// Whether the page was cut off before it was found.
    Found(Held, bool),
    Over,
}

impl Actor {
    const fn steps(&self) -> usize {
        match self {
            Self::Out(_) => 3,
            Self::Store(..) => 5,
            Self::Cut => 1,
            Self::Rewrite(..) => 2,
        }
    }

    fn step(&mut self, page: &mut Page) {
        match self {
            Self::Out(state) => *state = core::mem::replace(state, Out::Over).next(page),
            Self::Store(byte, state) => {
                *state = core::mem::replace(state, Store::Over).next(page, *byte);
            }
            Self::Cut => page.cut_off(),
            Self::Rewrite(_, state @ Rewrite::Cut) => {
                page.cut_off();
                *state = Rewrite::Write;
            }
            Self::Rewrite(byte, Rewrite::Write) => {
                write(&page.cache, 0, &[*byte; PAGE_SIZE]);
                page.byte = *byte;
            }
        }
    }
}

impl Out {
    fn next(self, page: &Page) -> Self {
        match self {
            Self::Begin => {
                let Some(frame) = page.cache.begin_leaving(0) else { return Self::Over };
                Self::Write(page.commons.swap.reserve(AccountId::ROOT).unwrap(), frame)
            }
            Self::Write(place, frame) => {
                page.disk.write(place.slot, &[frame.held()]).unwrap();
                page.commons.swap.finish(place, Wrote::Stored);
                Self::End(place, frame)
            }
            Self::End(place, frame) => {
                if !page.cache.end_leaving(0, place, frame) {
                    page.commons.swap.leave(place);
                }
                Self::Over
            }
            Self::Over => Self::Over,
        }
    }
}

impl Store {
    fn next(self, page: &mut Page, byte: u8) -> Self {
        let commons = page.commons.clone();
        match self {
            Self::Begin => match page.cache.get(0).unwrap() {
                Some(frame) => Self::Found(frame, page.cut),
                None => Self::Read(page.cache.enter(0, &commons).unwrap().to_vec()),
            },
            Self::Read(run) => match run.first() {
                Some(_) => {
                    let frames = page.cache.read_in(0, &run, NodePolicy::Local, &commons).unwrap();
                    Self::Put(run, frames)
                }
                None => Self::Get,
            },
            Self::Put(run, frames) => {
                page.cache.put(0, run[0], frames, &commons);
                run.iter().for_each(|&place| commons.swap.leave(place));
                Self::Get
            }
            Self::Get => Self::Found(page.cache.get_or_fill(0, NodePolicy::Local).unwrap().0, page.cut),
            Self::Found(frame, cut_before) => {
                page.disk.model.with_bytes(frame.pfn(), |bytes: &mut [u8; PAGE_SIZE]| bytes[0] = byte);
                // A store to a page that was cut off after it was found does not count.
                page.byte = if cut_before == page.cut { byte } else { page.byte };
                Self::Over
            }
            Self::Over => Self::Over,
        }
    }
}

/// All orders of so many steps of each actor.
fn orders(left: &mut [usize], order: &mut Vec<usize>, f: &mut dyn FnMut(&[usize])) {
    if left.iter().all(|&steps| steps == 0) {
        return f(order);
    }
    for actor in 0..left.len() {
        if left[actor] > 0 {
            left[actor] -= 1;
            order.push(actor);
            orders(left, order, f);
            order.pop();
            left[actor] += 1;
        }
    }
}

/// Whether the page is in memory at first, or in the swap.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Memory,
    Swap,
}

fn in_every_order(at: At, actors: fn() -> Vec<Actor>) {
    let s = Swapping::new(8);
    let mut left: Vec<usize> = actors().iter().map(Actor::steps).collect();
    orders(&mut left, &mut Vec::new(), &mut |order| {
        let mut page = Page::new(&s);
        if at == At::Swap {
            let mut out = Actor::Out(Out::Begin);
            (0..3).for_each(|_| out.step(&mut page));
            assert_eq!(page.cache.swapped_pages(), 1);
        }
        let mut actors = actors();
        order.iter().for_each(|&actor| actors[actor].step(&mut page));
        drop(actors);
        assert_eq!(read(&page.cache, 0, 1), [page.byte], "{order:?}");
        s.check();
        // A page in memory has no slot.
        assert_eq!(s.used(), page.cache.swapped_pages(), "{order:?}");
    });
    s.end();
}

#[test]
fn a_store_is_in_the_page_whoever_takes_it_out_meanwhile() {
    let actors =
        || Vec::from([Actor::Out(Out::Begin), Actor::Out(Out::Begin), Actor::Store(2, Store::Begin)]);
    in_every_order(At::Memory, actors);
    in_every_order(At::Swap, actors);
}

#[test]
fn a_page_in_anothers_place_does_not_leave_with_the_bytes_of_the_first() {
    in_every_order(At::Memory, || {
        Vec::from([Actor::Out(Out::Begin), Actor::Out(Out::Begin), Actor::Rewrite(2, Rewrite::Cut)])
    });
}

#[test]
fn what_is_cut_off_stays_away_whoever_takes_it_out_or_brings_it_in_meanwhile() {
    let out = || Vec::from([Actor::Out(Out::Begin), Actor::Store(2, Store::Begin), Actor::Cut]);
    in_every_order(At::Memory, out);
    in_every_order(At::Swap, out);
    in_every_order(At::Swap, || {
        Vec::from([Actor::Store(2, Store::Begin), Actor::Store(3, Store::Begin), Actor::Cut])
    });
}
