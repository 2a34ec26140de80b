//! What a watch has yet to be told: a bounded queue that never makes the writer wait.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use super::mvcc::Change;
use crate::storage::StorageError;

/// One watch's queue, between the store that fills and the stream that empties it.
pub(super) struct Queue {
    bound: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    changes: VecDeque<Arc<Change>>,
    /// A progress notice that was asked for, due after the changes.
    progress: Option<u64>,
    /// Why nothing comes after what is queued.
    end: Option<StorageError>,
    waker: Option<Waker>,
}

/// What a stream takes from its queue.
pub(super) enum Item {
    Change(Arc<Change>),
    Progress(u64),
    End(StorageError),
}

impl Queue {
    /// A queue that begins with what the watch missed and takes `bound` changes more.
    pub(super) fn new(bound: usize, missed: VecDeque<Arc<Change>>) -> Self {
        // What was missed is bounded by the history, and not the reader's fault.
        let bound = bound + missed.len();
        Self { bound, state: Mutex::new(State { changes: missed, ..State::default() }) }
    }

    /// Adds a change. False, once, when the queue is full: then the watch ends after what is queued.
    pub(super) fn push(&self, change: &Arc<Change>) -> bool {
        self.update(|state| {
            let fits = state.changes.len() < self.bound;
            if fits {
                state.changes.push_back(Arc::clone(change));
            } else {
                state.end = Some(StorageError::SlowReader);
            }
            fits
        })
    }

    /// Ends the watch after what is queued.
    pub(super) fn close(&self, error: StorageError) {
        self.update(|state| state.end = Some(error));
    }

    /// Asks for a notice that everything up to `revision` has been told.
    pub(super) fn push_progress(&self, revision: u64) {
        self.update(|state| state.progress = Some(revision));
    }

    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Item> {
        let mut state = self.state.lock();
        let item = state
            .changes
            .pop_front()
            .map(Item::Change)
            .or_else(|| state.progress.take().map(Item::Progress))
            .or_else(|| state.end.take().map(Item::End));
        match item {
            Some(item) => Poll::Ready(item),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (answer, waker) = {
            let mut state = self.state.lock();
            (change(&mut state), state.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        answer
    }
}
