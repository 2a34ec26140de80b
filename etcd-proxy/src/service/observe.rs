//! `Election.Observe`: the leaders of an election one after the other, and what they proclaim
//! (`client/v3/concurrency/election.go`, `observe`).

use std::collections::VecDeque;

use bytes::Bytes;
use http::Response;
use proto::{
    etcdserverpb::{ResponseHeader, WatchCreateRequest},
    mvccpb::{KeyValue, event::EventType},
    v3electionpb::{LeaderRequest, LeaderResponse},
};
use tonic::{Status, body::Body};

use super::{
    ClientCall,
    concurrency::{Queue, revision},
    local::{Ended, Local, Watch},
    own_stream,
    unary::{OwnCall, answer},
};
use crate::{grpc::Share, metrics::Call, tenant::Tenant};

/// Somebody who observes an election.
struct Observer {
    local: Local,
    queue: Queue,
    stage: Stage,
}

enum Stage {
    /// Who leads is to be found out.
    Look,
    /// Nobody leads.
    Vacant(Watch),
    /// A leader was told, whose key is to be followed from here on once the client has it.
    Told { key: Bytes, start_revision: i64, held: Held },
    /// A leader is followed.
    Follow(Watch),
    /// What a leader has proclaimed is to be told, and whether it has gone then.
    Telling { watch: Watch, told: VecDeque<LeaderResponse>, gone: bool },
    /// The history that is to be followed was compacted, which etcd takes for the end.
    Over,
}

/// What a leader that is told has of the memory, if its value is long.
enum Held {
    /// What it was read by.
    Range(#[expect(dead_code, reason = "dropping it is what counts")] Option<Share>),
    /// What it was heard of by, which has it.
    Watch(#[expect(dead_code, reason = "dropping it is what counts")] Watch),
}

/// Carries out the call.
pub(super) async fn serve(tenant: &Tenant, client: ClientCall, call: Call) -> Result<Response<Body>, Status> {
    let ClientCall { path, headers, deadline, incoming } = client;
    own_stream::serve(tenant, deadline, call, tenant.stream_patience(), async move {
        let message = incoming.only().await?.message;
        let call = OwnCall { tenant, path, headers, message };
        let request: LeaderRequest = call.streaming_request("v3electionpb.LeaderRequest")?;
        let observer = Observer { local: call.local(), queue: Queue::of(&request.name), stage: Stage::Look };
        Ok(futures::stream::try_unfold(observer, async |mut observer| match observer.next().await? {
            Some(leader) => Ok(Some((answer(&leader)?.freeze(), observer))),
            None => Ok(None),
        }))
    })
    .await
}

// === impl Observer ===

impl Observer {
    /// The next leader, or what the same one has proclaimed.
    async fn next(&mut self) -> Result<Option<LeaderResponse>, Status> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Over => return Ok(None),
                Stage::Look => {
                    let (range, share) = self.local.long_range(&self.queue.first()).await?;
                    match range.kvs.into_iter().next() {
                        Some(kv) => return self.tell(range.header, kv, Held::Range(share)),
                        None => {
                            let watch = self.queue.watch(revision(range.header)?);
                            self.stage = Stage::Vacant(self.local.watch(watch).await?);
                        }
                    }
                }
                Stage::Vacant(mut watch) => {
                    let Some(response) = unless_compacted(watch.next().await)? else { continue };
                    let put = response.events.into_iter().find(|event| event.r#type() == EventType::Put);
                    match put.and_then(|event| event.kv) {
                        Some(kv) => {
                            let revision = kv.mod_revision;
                            let header = response.header.map(|header| ResponseHeader { revision, ..header });
                            return self.tell(header, kv, Held::Watch(watch));
                        }
                        None => self.stage = Stage::Vacant(watch),
                    }
                }
                Stage::Told { key, start_revision, held } => {
                    // Two watches at a time might be one too many.
                    drop(held);
                    let create = WatchCreateRequest { key, start_revision, ..Default::default() };
                    self.stage = Stage::Follow(self.local.watch(create).await?);
                }
                Stage::Follow(mut watch) => {
                    let Some(response) = unless_compacted(watch.next().await)? else { continue };
                    let header = response.header;
                    let puts = response.events.iter().take_while(|event| event.r#type() == EventType::Put).count();
                    let gone = puts < response.events.len();
                    let told = response.events.into_iter().take(puts);
                    let told = told.map(|event| LeaderResponse { header, kv: event.kv }).collect();
                    self.stage = Stage::Telling { watch, told, gone };
                }
                Stage::Telling { watch, mut told, gone } => match told.pop_front() {
                    Some(leader) => {
                        self.stage = Stage::Telling { watch, told, gone };
                        return Ok(Some(leader));
                    }
                    None if gone => self.stage = Stage::Look,
                    None => self.stage = Stage::Follow(watch),
                },
            }
        }
    }

    fn tell(
        &mut self,
        header: Option<ResponseHeader>,
        kv: KeyValue,
        held: Held,
    ) -> Result<Option<LeaderResponse>, Status> {
        self.stage = Stage::Told { key: kv.key.clone(), start_revision: revision(header)?.saturating_add(1), held };
        Ok(Some(LeaderResponse { header, kv: Some(kv) }))
    }
}

/// etcd's service ends with status OK when the history that it was to follow is gone.
fn unless_compacted<T>(result: Result<T, Ended>) -> Result<Option<T>, Status> {
    match result {
        Ok(response) => Ok(Some(response)),
        Err(Ended::Compacted) => Ok(None),
        Err(ended) => Err(ended.into()),
    }
}
