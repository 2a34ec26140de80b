//! How much is measured: three sizes of the same run.

use std::time::Duration;

use clap::ValueEnum;

/// How large a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Size {
    /// For the documents.
    Full,
    /// For daily use, in minutes.
    Quick,
    /// To see that everything still runs; its figures say nothing.
    Smoke,
}

/// The sizes of every load.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// How often each figure is taken, the subjects taking turns.
    pub(crate) rounds: usize,
    /// How long one load of requests takes about.
    pub(crate) load: Duration,
    /// Requests of each client before those that count; the number of the latter is found by them as well.
    pub(crate) warm_up: usize,
    /// How long a process is left alone before its idle memory is read.
    pub(crate) idle: Duration,
    /// How often each program is started.
    pub(crate) starts: usize,
    /// Size of what one range reads, in bytes.
    pub(crate) range_bytes: usize,
    /// Watchers of one key of an etcd.
    pub(crate) etcd_watchers: FanOut,
    /// Watches that nothing happens to, and the streams they share.
    pub(crate) idle_watches: IdleWatches,
    /// Objects that a LIST answers.
    pub(crate) listed: usize,
    /// Objects that a server holds besides.
    pub(crate) unlisted: usize,
    /// Objects that a large LIST answers.
    pub(crate) large: usize,
    /// Watchers of one resource of an API server.
    pub(crate) api_watchers: FanOut,
    /// EtcdProxy objects.
    pub(crate) proxies: usize,
    /// How many of them are changed, one after the other.
    pub(crate) changes: usize,
    /// How long the controller's requests are counted while nothing changes.
    pub(crate) steady: Duration,
    /// Whether requests through the aggregator are shown as well.
    pub(crate) aggregator: bool,
}

/// Watchers that all see the same events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FanOut {
    /// Watchers.
    pub(crate) watchers: usize,
    /// The streams or connections that they share.
    pub(crate) streams: usize,
    /// Events.
    pub(crate) events: usize,
    /// Most events a second.
    pub(crate) rate: u32,
}

/// Watches to which nothing happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleWatches {
    /// Watches.
    pub(crate) watches: usize,
    /// The streams that they share.
    pub(crate) streams: usize,
}

impl Plan {
    /// The plan of a size.
    pub(crate) const fn of(size: Size) -> Self {
        let seconds = Duration::from_secs;
        let millis = Duration::from_millis;
        match size {
            Size::Full => Self {
                rounds: 7,
                load: seconds(5),
                warm_up: 1000,
                idle: seconds(60),
                starts: 9,
                range_bytes: 100_000_000,
                etcd_watchers: FanOut { watchers: 1000, streams: 10, events: 1000, rate: 1000 },
                idle_watches: IdleWatches { watches: 10_000, streams: 100 },
                listed: 1000,
                unlisted: 9000,
                large: 100_000,
                api_watchers: FanOut { watchers: 1000, streams: 1000, events: 250, rate: 50 },
                proxies: 1000,
                changes: 200,
                steady: seconds(180),
                aggregator: true,
            },
            Size::Quick => Self {
                rounds: 3,
                load: millis(1200),
                warm_up: 200,
                idle: seconds(3),
                starts: 3,
                range_bytes: 20_000_000,
                etcd_watchers: FanOut { watchers: 100, streams: 10, events: 500, rate: 1000 },
                idle_watches: IdleWatches { watches: 1000, streams: 10 },
                listed: 1000,
                unlisted: 0,
                large: 5000,
                api_watchers: FanOut { watchers: 100, streams: 100, events: 100, rate: 100 },
                proxies: 100,
                changes: 30,
                steady: seconds(15),
                aggregator: false,
            },
            Size::Smoke => Self {
                rounds: 1,
                load: millis(30),
                warm_up: 10,
                idle: millis(10),
                starts: 1,
                range_bytes: 500_000,
                etcd_watchers: FanOut { watchers: 4, streams: 2, events: 5, rate: 1000 },
                idle_watches: IdleWatches { watches: 4, streams: 2 },
                listed: 10,
                unlisted: 5,
                large: 20,
                api_watchers: FanOut { watchers: 3, streams: 3, events: 5, rate: 100 },
                proxies: 2,
                changes: 2,
                steady: seconds(1),
                aggregator: true,
            },
        }
    }
}
