//! Watches of the parties: requests on their streams, and the answers as they come.

use std::time::Duration;

use proto::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchResponse, watch_request::RequestUnion,
};
use tokio::time::{Instant, timeout};

use super::World;
use crate::{steps::DIRECT, store::Store, stream::Stream, support::Watching};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a watch may take to catch up before progress is asked for again.
const AGAIN: Duration = Duration::from_millis(150);

/// A stream and what is expected of it.
pub(super) struct Open {
    watching: Watching,
    stream: Stream,
}

// === impl World ===

impl World {
    pub(super) async fn watch(
        &mut self,
        party: usize,
        stream: usize,
        creates: &[WatchCreateRequest],
    ) -> Result<(), String> {
        let store = &self.stores[party];
        let open = match &mut self.streams[party][stream] {
            Some(open) => {
                for create in creates {
                    open.watching.send(RequestUnion::CreateRequest(create.clone()));
                }
                open
            }
            none => {
                // etcd answers a stream once it has answered its first request.
                let watching = timeout(PATIENCE, self.clients[party].watch(creates.to_vec()))
                    .await
                    .map_err(|_| "the stream is not opened".to_owned())?;
                none.insert(Open { watching, stream: Stream::default() })
            }
        };
        for create in creates {
            open.stream.create(store, create);
        }
        open.settle(store).await
    }

    pub(super) async fn cancel(&mut self, party: usize, stream: usize, index: usize) -> Result<(), String> {
        let store = &self.stores[party];
        let Some(open) = &mut self.streams[party][stream] else { return Ok(()) };
        open.drain(store).await?;
        // Also one that is not there, which is not answered.
        let id = match index {
            0 => 99,
            index => open.stream.id(index).unwrap_or(99),
        };
        open.stream.cancel(id);
        open.watching.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id }));
        open.settle(store).await
    }

    pub(super) async fn progress(&mut self, party: usize, stream: usize) -> Result<(), String> {
        let store = &self.stores[party];
        let Some(open) = &mut self.streams[party][stream] else { return Ok(()) };
        open.progress(store).await
    }

    /// Until everything has come that is to come.
    pub(super) async fn drain(&mut self) -> Result<(), String> {
        for party in 0..=DIRECT {
            let store = &self.stores[party];
            for open in self.streams[party].iter_mut().flatten() {
                open.drain(store).await.map_err(|wrong| format!("a watch of party {party}: {wrong}"))?;
            }
        }
        Ok(())
    }

    /// Until everything has come, and nothing more.
    pub(super) async fn finish(&mut self) -> Result<(), String> {
        self.drain().await?;
        for party in 0..=DIRECT {
            let store = &self.stores[party];
            for open in self.streams[party].iter_mut().flatten() {
                open.progress(store).await.map_err(|wrong| format!("a watch of party {party}: {wrong}"))?;
            }
        }
        Ok(())
    }
}

// === impl Open ===

impl Open {
    /// Until requests are answered.
    async fn settle(&mut self, store: &Store) -> Result<(), String> {
        while self.stream.awaits_answers() {
            self.next(store).await?;
        }
        Ok(())
    }

    async fn drain(&mut self, store: &Store) -> Result<(), String> {
        let start = Instant::now();
        while self.stream.outstanding(store) {
            self.next(store).await?;
            // Word of progress alone does not do.
            if start.elapsed() > PATIENCE {
                return Err(format!("not all has come: {:?}", self.stream));
            }
        }
        Ok(())
    }

    /// Asks for progress. What was to be told before has been told before.
    async fn progress(&mut self, store: &Store) -> Result<(), String> {
        let ask = |watching: &Watching| watching.send(RequestUnion::ProgressRequest(WatchProgressRequest {}));
        ask(&self.watching);
        if !self.stream.answers_progress(store) {
            return Ok(());
        }
        let start = Instant::now();
        let mut asked = start;
        while start.elapsed() < PATIENCE {
            if let Ok(answer) = timeout(AGAIN, self.watching.responses.message()).await
                && self.take(store, answer)?
            {
                return Ok(());
            }
            // One that a compaction has overtaken never does.
            if !self.stream.answers_progress(store) {
                return Ok(());
            }
            // Until it has caught up, a stream does not answer. Nobody can see when that is.
            if !self.stream.prompt() && asked.elapsed() > AGAIN {
                ask(&self.watching);
                asked = Instant::now();
            }
        }
        Err(format!("no progress: {:?}", self.stream))
    }

    async fn next(&mut self, store: &Store) -> Result<bool, String> {
        match timeout(PATIENCE, self.watching.responses.message()).await {
            Ok(answer) => self.take(store, answer),
            Err(_) => Err(format!("nothing comes any more: {:?}", self.stream)),
        }
    }

    fn take(&mut self, store: &Store, answer: Result<Option<WatchResponse>, tonic::Status>) -> Result<bool, String> {
        let mut answer = answer.map_err(|status| format!("{status:?}"))?.ok_or("the stream has ended")?;
        let header = answer.header.as_mut().ok_or("no header")?;
        if header.cluster_id == 0 || header.member_id == 0 {
            return Err(format!("a header that does not say whose it is: {answer:?}"));
        }
        self.stream.answer(store, &answer)
    }
}
