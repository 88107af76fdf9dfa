//! Batches of launches between two events. Their number is fixed, and nothing is allocated.

use gputenancy_ledger::Used;

use crate::{
    clock::now,
    lock::Lock,
    pace::event::{Base, Event, Stream, relaxed},
};

/// Nanoseconds of work in a batch, as expected.
pub const ROUND: u64 = 500_000;
/// Most launches of a batch.
const LAUNCHES: u64 = 256;
/// Nanoseconds between two launches of a stream from which on each is a batch of its own: the time between them is not the GPU's.
const SPARSE: u64 = 50_000;
/// Nanoseconds after which a base is recorded again: the time between events has 24 bits.
const RENEWAL: u64 = 5_000_000_000;
/// Streams with a batch at a time.
const STREAMS: usize = 16;
/// Batches that the GPU has not ended.
const BATCHES: usize = 32;
/// Contexts of the process.
const CONTEXTS: usize = 4;
/// Events that are used again.
const EVENTS: usize = 64;
/// Batches that have ended and are not charged yet.
const ENDED: usize = 64;

/// Launches of a stream.
#[derive(Clone, Copy, Debug)]
struct Open {
    stream: Stream,
    start: Event,
    launches: u64,
    /// Launches after which it is complete.
    most: u64,
    /// When the program came with its first launch.
    arrived: u64,
    began: u64,
    /// Time of the last launch.
    last: u64,
}

const NO_BATCH: Open =
    Open { stream: Stream::NONE, start: Event::NONE, launches: 0, most: 0, arrived: 0, began: 0, last: 0 };

/// A batch that the program has launched.
#[derive(Clone, Copy, Debug)]
struct Closed {
    context: usize,
    start: Event,
    end: Event,
    launches: u64,
    arrived: u64,
    began: u64,
    /// Its end was recorded some time after its last launch: if the GPU was idle then, the batch took no longer than this, in nanoseconds.
    most: u64,
    /// When its end was recorded.
    at: u64,
    /// The program does not wait for it any more.
    endless: bool,
}

const NOT_CLOSED: Closed = Closed {
    context: 0,
    start: Event::NONE,
    end: Event::NONE,
    launches: 0,
    arrived: 0,
    began: 0,
    most: u64::MAX,
    at: 0,
    endless: false,
};

/// A batch that the GPU has ended.
#[derive(Clone, Copy)]
struct Ended {
    used: Used,
    /// 0 if its time says nothing about the mean.
    launches: u64,
}

const FREE: Ended = Ended { used: Used { arrived: 0, launched: 0, start: 0, end: 0 }, launches: 0 };

/// What this process measures.
struct Meter {
    open: [Open; STREAMS],
    closed: [Closed; BATCHES],
    /// Batches to be charged; an end of 0 is a free place.
    ended: [Ended; ENDED],
    bases: [Base; CONTEXTS],
    /// Events by context.
    free: [(usize, Event); EVENTS],
    /// Nanoseconds of a launch, on average; `ROUND` while nothing is known.
    mean: u64,
}

const NOTHING: Meter = Meter {
    open: [NO_BATCH; STREAMS],
    closed: [NOT_CLOSED; BATCHES],
    ended: [FREE; ENDED],
    bases: [Base::NONE; CONTEXTS],
    free: [(0, Event::NONE); EVENTS],
    mean: ROUND,
};

static METER: Lock<Meter> = Lock::new(NOTHING);

/// Batches that the GPU works on.
pub struct Pending {
    /// Their number.
    pub count: usize,
    /// Time when the oldest was launched.
    pub since: u64,
}

/// Forgets everything, in a child process after `fork`.
pub fn forget() {
    METER.reset(NOTHING);
}

/// Forgets all bases, events, and batches that have not ended: a context is gone. Events of other contexts stay until the end of the process.
pub fn drop_all() {
    METER.with(|meter| *meter = Meter { ended: meter.ended, ..NOTHING });
}

/// What a launch is for the batch of its stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// There is no batch for it.
    No,
    /// One of the launches.
    Yes,
    /// The last one.
    Last,
}

/// Counts a launch in the batch of its stream, if that is not complete yet.
pub fn count(stream: Stream) -> Counted {
    let now = now();
    METER.with(|meter| {
        let Some(open) = meter.open.iter_mut().find(|open| open.stream == stream && open.start != Event::NONE) else {
            return Counted::No;
        };
        let dense = now.saturating_sub(open.last) < SPARSE && now.saturating_sub(open.began) < ROUND;
        if !dense || open.launches >= open.most {
            return Counted::No;
        }
        (open.launches, open.last) = (open.launches.saturating_add(1), now);
        if open.launches < open.most { Counted::Yes } else { Counted::Last }
    })
}

/// After the last launch of a batch: it ends with it.
pub fn end(stream: Stream) {
    METER.with(|meter| {
        let at = meter.open.iter().position(|open| open.stream == stream && open.start != Event::NONE);
        if let Some(at) = at {
            meter.close(at, u64::MAX);
        }
    });
}

/// What limits a batch.
#[derive(Clone, Copy)]
pub struct Round {
    /// It is a graph, and a batch of its own.
    pub graph: bool,
    /// When the program came with its launch.
    pub arrived: u64,
    /// Nanoseconds that it may take.
    pub time_left: u64,
}

/// Begins a batch with one launch, if the stream can be measured.
pub fn begin(stream: Stream, round: Round) -> Counted {
    let Round { graph, arrived, time_left } = round;
    let now = now();
    METER.with(|meter| {
        let at = meter.place(stream);
        let sparse = meter.open.get(at).is_none_or(|o| o.stream != stream || arrived.saturating_sub(o.last) >= SPARSE);
        let most = if sparse || graph {
            1
        } else {
            ROUND.min(time_left).checked_div(meter.mean).unwrap_or(1).clamp(1, LAUNCHES)
        };
        let Some(start) = meter.event(stream.context) else { return Counted::No };
        if !start.record(stream) {
            meter.put_back(stream.context, start);
            return Counted::No;
        }
        if let Some(open) = meter.open.get_mut(at) {
            *open = Open { stream, start, launches: 1, most, arrived, began: now, last: now };
        }
        if most > 1 { Counted::Yes } else { Counted::Last }
    })
}

/// Ends the batch of a stream, whose last launch was some time ago.
pub fn close(stream: Stream) {
    METER.with(|meter| {
        if let Some(at) = meter.open.iter().position(|open| open.stream == stream && open.start != Event::NONE) {
            meter.close_late(at);
        }
    });
}

/// Ends the batches of the current context, before the program waits for the GPU.
pub fn close_all() {
    let here = Stream::new(std::ptr::null_mut(), false);
    METER.with(|meter| {
        for at in 0..STREAMS {
            let ends = |open: &Open| {
                open.start != Event::NONE && open.stream.context == here.context && open.stream.is_of_this_thread()
            };
            if meter.open.get(at).is_some_and(ends) {
                meter.close(at, u64::MAX);
            }
        }
    });
}

/// Ends the batch of a stream that will be gone. Without its context nothing can be recorded on it.
pub fn close_stream(stream: Stream) {
    METER.with(|meter| {
        for at in 0..STREAMS {
            let Some(open) = meter.open.get(at).copied() else { continue };
            if open.start == Event::NONE || !open.stream.has_handle_of(stream) {
                continue;
            }
            if open.stream == stream {
                meter.close(at, u64::MAX);
            } else {
                meter.abandon(at);
            }
        }
    });
}

/// What happens with batches that the GPU has ended.
pub trait Ends {
    /// A batch has ended.
    fn record(&self, used: &Used);
    /// Whether all is known that its charge depends on.
    fn is_known(&self, used: &Used) -> bool;
    /// Charges it; returns the nanoseconds of it in which the GPU was not at work for neighbours.
    fn charge(&self, used: &Used) -> u64;
}

/// Takes the batches of the current context that the GPU has ended, and charges those that can be.
pub fn settle(context: usize, ends: &impl Ends) -> Pending {
    relaxed(|| {
        METER.with(|meter| {
            meter.renew_base(context);
            for at in 0..BATCHES {
                if let Some(ended) = meter.take_ended(at, context) {
                    ends.record(&ended.used);
                    meter.keep(ended, ends);
                }
            }
            meter.charge(ends);
            // those of other contexts are not looked at here, so waiting for them would not end
            let own = |batch: &&Closed| batch.end != Event::NONE && !batch.endless && batch.context == context;
            let pending = meter.closed.iter().filter(own);
            let (count, since) = pending
                .fold((0_usize, u64::MAX), |(count, since), batch| (count.saturating_add(1), since.min(batch.at)));
            Pending { count, since }
        })
    })
}

/// The program does not wait any more for the batches that the GPU has not ended.
pub fn give_up() {
    METER.with(|meter| meter.closed.iter_mut().for_each(|batch| batch.endless = true));
}

/// Nanoseconds that the GPU is expected to need for what it works on.
pub fn expected(pending: &Pending, now: u64) -> u64 {
    let passed = now.saturating_sub(pending.since.min(now));
    (pending.count as u64).saturating_mul(mean().max(ROUND)).saturating_sub(passed)
}

/// Nanoseconds of a launch, on average.
pub fn mean() -> u64 {
    METER.with(|meter| meter.mean)
}

impl Meter {
    /// Where the batch of a stream is, or can be: a free place, or the least recently used one.
    fn place(&mut self, stream: Stream) -> usize {
        let of_stream = self.open.iter().position(|open| open.stream == stream);
        let oldest = || self.open.iter().enumerate().min_by_key(|(_, open)| open.last).map_or(0, |(at, _)| at);
        let at = of_stream.unwrap_or_else(oldest);
        match self.open.get(at) {
            Some(open) if open.start == Event::NONE => {}
            // nothing can be recorded on the stream of another thread
            Some(open) if !open.stream.is_of_this_thread() => self.abandon(at),
            _ => self.close_late(at),
        }
        at
    }

    fn event(&mut self, context: usize) -> Option<Event> {
        match self.free.iter_mut().find(|(of, event)| *of == context && *event != Event::NONE) {
            Some((_, event)) => Some(std::mem::replace(event, Event::NONE)),
            None => relaxed(Event::create),
        }
    }

    fn put_back(&mut self, context: usize, event: Event) {
        match self.free.iter_mut().find(|(_, event)| *event == Event::NONE) {
            Some(place) => *place = (context, event),
            None => event.destroy(),
        }
    }

    /// A batch whose end cannot be recorded is not measured.
    fn abandon(&mut self, at: usize) {
        let Some(open) = self.open.get_mut(at) else { return };
        let (context, start) = (open.stream.context, std::mem::replace(&mut open.start, Event::NONE));
        self.put_back(context, start);
    }

    /// A batch whose last launch was some time ago: if the GPU has ended it meanwhile, it took no more than expected of as many launches.
    fn close_late(&mut self, at: usize) {
        let launches = self.open.get(at).map_or(0, |open| open.launches);
        self.close(at, launches.saturating_mul(self.mean).max(ROUND));
    }

    fn close(&mut self, at: usize, most: u64) {
        let Some(open) = self.open.get_mut(at) else { return };
        let Open { stream, start, launches, arrived, began, .. } = *open;
        open.start = Event::NONE;
        let place = self.closed.iter().position(|batch| batch.end == Event::NONE);
        let measured = place.filter(|_| !stream.is_capturing()).and_then(|place| {
            let end = self.event(stream.context)?;
            if end.record(stream) {
                return Some((place, end));
            }
            self.put_back(stream.context, end);
            None
        });
        let Some((place, end)) = measured else { return self.put_back(stream.context, start) };
        if let Some(closed) = self.closed.get_mut(place) {
            let (context, at) = (stream.context, now());
            *closed = Closed { context, start, end, launches, arrived, began, most, at, endless: false };
        }
    }

    /// Keeps a batch until it is charged; without a place the first one is charged now.
    fn keep(&mut self, ended: Ended, ends: &impl Ends) {
        // a free place has begun at 0
        if let Some(place) = self.ended.iter_mut().min_by_key(|place| place.used.start) {
            let first = std::mem::replace(place, ended);
            self.charge_one(&first, ends);
        }
    }

    /// Charges the batches that can be, in the order of their begin: so time in which several streams worked is charged once.
    fn charge(&mut self, ends: &impl Ends) {
        let mut known = [FREE; ENDED];
        for (place, to) in self.ended.iter_mut().zip(&mut known) {
            if place.used.end != 0 && ends.is_known(&place.used) {
                *to = std::mem::replace(place, FREE);
            }
        }
        known.sort_unstable_by_key(|ended| ended.used.start);
        for ended in &known {
            self.charge_one(ended, ends);
        }
    }

    fn charge_one(&mut self, ended: &Ended, ends: &impl Ends) {
        if ended.used.end == 0 {
            return;
        }
        let time = ends.charge(&ended.used);
        if let Some(each) = time.checked_div(ended.launches).filter(|each| *each > 0) {
            // new behaviour is known after a few batches
            self.mean = self.mean.saturating_mul(3).saturating_add(each).checked_div(4).unwrap_or(each).max(1);
        }
    }

    fn renew_base(&mut self, context: usize) {
        match self.bases.iter_mut().find(|base| base.context == context) {
            Some(base) if now().saturating_sub(base.tried) < RENEWAL => {}
            Some(base) => base.renew(),
            None => {
                // further contexts than these are not measured
                let free = self.bases.iter_mut().find(|base| base.context == 0);
                if let Some(place) = free
                    && let Some(base) = Base::create(context)
                {
                    *place = base;
                }
            }
        }
    }

    /// What a batch took, if the GPU has ended it.
    fn take_ended(&mut self, at: usize, context: usize) -> Option<Ended> {
        let batch = self.closed.get(at).copied().filter(|b| b.end != Event::NONE && b.context == context)?;
        let reached = batch.end.is_reached();
        if reached == Some(false) {
            return None;
        }
        let base = self.bases.iter().find(|base| base.context == context);
        let used = base.filter(|_| reached.is_some()).and_then(|base| {
            let (start, end) = (base.time(batch.start)?, base.time(batch.end)?);
            // the GPU was still at work when the end was recorded
            let busy = end > batch.at.saturating_add(SPARSE);
            let most = if busy { u64::MAX } else { batch.most };
            let end = end.min(start.saturating_add(most));
            let launches = if batch.most == u64::MAX { batch.launches } else { 0 };
            Some(Ended { used: Used { arrived: batch.arrived, launched: batch.began, start, end }, launches })
        });
        self.put_back(context, batch.start);
        self.put_back(context, batch.end);
        if let Some(closed) = self.closed.get_mut(at) {
            *closed = NOT_CLOSED;
        }
        used
    }
}
