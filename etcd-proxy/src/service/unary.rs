//! The way of a unary call.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, TryStreamExt as _};
use prost::Message;
use proto::etcdserverpb::{PutRequest, RangeRequest, RangeResponse};
use tonic::{Status, body::Body};

use super::{
    ClientCall, auth, cluster, election, kv, lease,
    local::Local,
    lock, maintenance,
    methods::{Own, Unary},
};
use crate::{
    error::EtcdError,
    grpc::{self, Arrived, NoAnswer, NoShare, Patient, Received, Share, UnaryBody, UpstreamHeaders, framing},
    limits::{Account, Amount, NotAdmitted, Place, Present},
    metrics::add_bytes,
    rewrite::{Call, Interrupt, LongAnswer, View},
    tenant::Tenant,
    unknown::{self, Bounds, Refusal},
};

const RANGE: &str = "/etcdserverpb.KV/Range";
/// Of the requests that are carried out here: `ProclaimRequest` has a `LeaderKey`, and that has none.
const BOUNDS: Bounds = Bounds { depth: 1, messages: 1000 };
/// What there is of an answer that is not passed on piece by piece: it, and the frame that is made of it.
const COPIES: usize = 2;
/// Answers up to this length take no share of the memory: their number is bounded.
const SMALL: usize = 4096;
/// Keys that are looked up at a time.
const LOOK_UPS: usize = 16;

/// The frame of an answer, and what it has of the memory.
pub(super) struct Answer {
    pub(super) frame: BytesMut,
    pub(super) share: Option<Share>,
}

/// A long answer on its way to the client.
struct LongPieces {
    tenant: Tenant,
    answer: LongAnswer,
}

/// A frame that is there already.
struct LongFrame(BytesMut);

/// Carries out a unary call. Returns the body of the answer, which keeps the call's place among those under way.
pub(super) async fn serve(
    tenant: &Tenant,
    kind: &Unary,
    client: ClientCall,
    mut under_way: Option<Present>,
) -> Result<Body, Status> {
    let ClientCall { path, headers, incoming, .. } = client;
    let own = match kind {
        Unary::Forward(rewriter) => {
            let Arrived { message, share: _held } = incoming.only().await?;
            return pass_on(tenant, &**rewriter, path, headers, &message, under_way).await;
        }
        Unary::Refuse(status) => return Err(status()),
        Unary::Own(own) => own,
    };
    let Arrived { message, share } = incoming.only().await?;
    // Who waits for a lock would keep others from writing.
    let _held = share.filter(|_| !own.waits());
    // Apart: these are rare, and the state of some is many times that of a call which is passed on.
    let call = OwnCall { tenant, path, headers, message };
    let Answer { frame, share } = Box::pin(carry_out(own, call, &mut under_way)).await?;
    // What it has done is done.
    body(tenant, frame, share, under_way, true).await
}

/// Carries out a call here. Work that outlives the call takes its place along.
async fn carry_out(own: &Own, call: OwnCall<'_>, under_way: &mut Option<Present>) -> Result<Answer, Status> {
    let frame = match own {
        Own::Compact => kv::compact(call).await,
        Own::LeaseGrant => lease::grant(call, under_way).await,
        Own::LeaseRevoke => lease::revoke(call).await,
        Own::LeaseLeases => return lease::leases(call).await,
        Own::MemberList => cluster::member_list(call).await,
        Own::Status => maintenance::status(call).await,
        Own::HashKv => maintenance::hash_kv(call).await,
        Own::Alarm => maintenance::alarm(call).await,
        Own::AuthStatus => auth::status(call).await,
        Own::UserList => auth::users(call).await,
        Own::RoleList => auth::roles(call).await,
        Own::Lock => lock::lock(call).await,
        Own::Unlock => lock::unlock(call).await,
        Own::Campaign => election::campaign(call).await,
        Own::Proclaim => election::proclaim(call, under_way).await,
        Own::Leader => return election::leader(call).await,
        Own::Resign => election::resign(call, under_way).await,
    };
    Ok(Answer { frame: frame?, share: None })
}

/// Passes a call on by way of its rewriter. Of a long answer the client gets piece by piece what it takes.
async fn pass_on(
    tenant: &Tenant,
    rewriter: &dyn Call,
    path: &'static str,
    headers: UpstreamHeaders,
    message: &Bytes,
    under_way: Option<Present>,
) -> Result<Body, Status> {
    let mut never_granted = false;
    let headers = headers.undecoded();
    let Received { message, share } = asked(tenant, rewriter, path, headers, message, 1, &mut never_granted).await?;
    let Some(share) = share else {
        let frame = answered(tenant, rewriter, path, &message, &mut never_granted).await?;
        drop(message);
        return body(tenant, frame, None, under_way, rewriter.writes()).await;
    };
    let answer = loop {
        let view = View { never_granted, ..tenant.view() };
        let interrupt = match rewriter.long_response(&view, &message) {
            Ok(long) => break long,
            Err(interrupt) => interrupt,
        };
        never_granted |= tenant.resolve(interrupt, path).await?;
    };
    let body = UnaryBody::long(LongPieces { tenant: tenant.clone(), answer }, share, under_way);
    Ok(Body::new(Patient::new(body, tenant.answer_patience())))
}

/// Passes a call on by way of its rewriter.
pub(super) async fn forward(
    tenant: &Tenant,
    rewriter: &dyn Call,
    path: &'static str,
    headers: UpstreamHeaders,
    message: &Bytes,
) -> Result<Answer, Status> {
    let mut never_granted = false;
    let Received { message, share } =
        asked(tenant, rewriter, path, headers, message, COPIES, &mut never_granted).await?;
    Ok(Answer { frame: answered(tenant, rewriter, path, &message, &mut never_granted).await?, share })
}

/// The tenant's frame of the upstream's answer.
async fn answered(
    tenant: &Tenant,
    rewriter: &dyn Call,
    path: &'static str,
    message: &Bytes,
    never_granted: &mut bool,
) -> Result<BytesMut, Status> {
    let frame = rewritten(tenant, path, never_granted, |view, out| rewriter.response(view, message, out)).await?;
    add_bytes(&tenant.metrics().rewritten_responses, frame.len());
    Ok(frame)
}

/// The upstream's answer to a call by way of its rewriter. If it is long, there will be so many copies of it.
async fn asked(
    tenant: &Tenant,
    rewriter: &dyn Call,
    path: &'static str,
    headers: UpstreamHeaders,
    message: &Bytes,
    copies: usize,
    never_granted: &mut bool,
) -> Result<Received, Status> {
    let request = rewritten(tenant, path, never_granted, |view, out| rewriter.request(view, message, out)).await?;
    tenant.check_length(&request)?;
    add_bytes(&tenant.metrics().rewritten_requests, request.len());
    let place = match tenant.limits().storage() {
        Some(storage) => admit(tenant, storage, rewriter, message).await?,
        None => None,
    };
    let channel = tenant.upstream().unary();
    let answer = grpc::call(channel, path, headers, request.freeze(), tenant.budget(), copies).await;
    if let Some(place) = place {
        settle(place, rewriter, &answer);
    }
    answer.map_err(|none| match none {
        NoAnswer::NoShare(none) => no_share(none, rewriter.writes()),
        none @ NoAnswer::Status(_) => none.into(),
    })
}

/// That there is no memory for the answer to a call, which may have written something.
fn no_share(none: NoShare, writes: bool) -> Status {
    match none {
        // To clients too many requests are some that were not carried out. This they look into, as at etcd's own time-outs.
        NoShare::Crowded if writes => EtcdError::Timeout.into(),
        none => none.into(),
    }
}

/// The body of an answer, which may have a share of the memory already.
async fn body(
    tenant: &Tenant,
    frame: BytesMut,
    share: Option<Share>,
    under_way: Option<Present>,
    writes: bool,
) -> Result<Body, Status> {
    let patience = tenant.answer_patience();
    if let Some(share) = share {
        return Ok(Body::new(Patient::new(UnaryBody::long(LongFrame(frame), share, under_way), patience)));
    }
    let share = match frame.len() {
        ..=SMALL => None,
        // No longer than what there is at least.
        length => Some(tenant.short_budget().share_or_all(length).await.map_err(|none| no_share(none, writes))?),
    };
    let waits = share.is_some() || under_way.as_ref().is_some_and(Present::is_one_of_many);
    Ok(Body::new(UnaryBody::new(frame, (under_way, share), waits, patience.timeout)))
}

/// A place for what a request may add to the tenant's storage; none if it adds nothing.
async fn admit<'a>(
    tenant: &'a Tenant,
    storage: &'a Account,
    rewriter: &dyn Call,
    message: &Bytes,
) -> Result<Option<Place<'a>>, Status> {
    let worst = rewriter.adds(message, &mut |put| size(put));
    if worst == Amount::NOTHING {
        return Ok(None);
    }
    match storage.admit(worst, growth(tenant, rewriter, message)).await {
        Ok(place) => Ok(Some(place)),
        Err(NotAdmitted::Exceeded) => Err(EtcdError::NoSpace.into()),
        Err(NotAdmitted::Unknown(status)) => Err(status),
    }
}

/// By how much a request grows what is stored, by what the keys that it puts have now.
async fn growth(tenant: &Tenant, rewriter: &dyn Call, message: &Bytes) -> Result<Amount, Status> {
    let mut before = HashMap::new();
    rewriter.adds(message, &mut |put| {
        before.insert(put.key.clone(), Amount::NOTHING);
        Amount::NOTHING
    });
    // etcd does not tell how long a value is without the value.
    let keys_only = tenant.limits().settings().quota_bytes.is_none();
    let look_up = |key: Bytes| async move {
        let request = RangeRequest { key: tenant.config().prefix.key(&key), keys_only, ..Default::default() };
        let (found, _share): (RangeResponse, _) = ask(tenant, RANGE, UpstreamHeaders::default(), &request, 1).await?;
        let size =
            found.kvs.first().map_or(Amount::NOTHING, |kv| Amount::key(key.len().saturating_add(kv.value.len())));
        Ok::<_, Status>((key, size))
    };
    let keys: Vec<Bytes> = before.into_keys().collect();
    let before: HashMap<Bytes, Amount> =
        futures::stream::iter(keys.into_iter().map(look_up)).buffer_unordered(LOOK_UPS).try_collect().await?;
    Ok(rewriter.adds(message, &mut |put| size(put) - before.get(&put.key).copied().unwrap_or_default()))
}

fn size(put: &PutRequest) -> Amount {
    Amount::key(put.key.len().saturating_add(put.value.len()))
}

fn settle(place: Place<'_>, rewriter: &dyn Call, answer: &Result<Received, NoAnswer>) {
    match answer {
        Ok(answer) => match rewriter.written(&answer.message) {
            Some(revision) => place.written(revision),
            None => place.nothing(),
        },
        Err(NoAnswer::Status(status)) => place.failed(status.code()),
        // It was carried out, and the answer would say at which revision.
        Err(NoAnswer::NoShare(_)) => drop(place),
    }
}

/// Rewrites a message, loading first what that turns out to need. `never_granted` is what is known of the tenant's leases from
/// the request to its answer.
pub(super) async fn rewritten(
    tenant: &Tenant,
    path: &'static str,
    never_granted: &mut bool,
    rewrite: impl Fn(&View<'_>, &mut BytesMut) -> Result<(), Interrupt>,
) -> Result<BytesMut, Status> {
    let mut out = BytesMut::new();
    loop {
        // The view must not live across the await.
        let interrupt = match rewrite(&View { never_granted: *never_granted, ..tenant.view() }, &mut out) {
            Ok(()) => return Ok(out),
            Err(interrupt) => interrupt,
        };
        *never_granted |= tenant.resolve(interrupt, path).await?;
    }
}

// === impl LongPieces, LongFrame ===

impl Iterator for LongPieces {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.answer.next(&self.tenant.view());
        if let Ok(Some(piece)) = &piece {
            add_bytes(&self.tenant.metrics().rewritten_responses, piece.len());
        }
        // It was gone through before: what could interrupt it did so then.
        piece.map_err(|_| Status::internal("etcd-proxy: the rest of the answer cannot be passed on")).transpose()
    }
}

impl Iterator for LongFrame {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.0.split_to(self.0.len().min(grpc::PIECE));
        // A copy, so that a piece which a client leaves where it is does not keep the whole alive.
        (!piece.is_empty()).then(|| Ok(Bytes::copy_from_slice(&piece)))
    }
}

/// A unary call that is carried out here.
pub(super) struct OwnCall<'a> {
    pub(super) tenant: &'a Tenant,
    /// The method's path, the same upstream.
    pub(super) path: &'static str,
    pub(super) headers: UpstreamHeaders,
    pub(super) message: Bytes,
}

// === impl OwnCall ===

impl OwnCall<'_> {
    /// The request, which must hold nothing unknown.
    pub(super) fn request<M: Message + Default>(&self, name: &str) -> Result<M, Status> {
        self.decode(name, Refusal::in_unary)
    }

    /// The same of a call whose answer is a stream.
    pub(super) fn streaming_request<M: Message + Default>(&self, name: &str) -> Result<M, Status> {
        self.decode(name, Refusal::in_stream)
    }

    fn decode<M: Message + Default>(&self, name: &str, refused: fn(Refusal) -> Status) -> Result<M, Status> {
        let schema = unknown::schema().map_err(|error| Status::internal(error.to_string()))?;
        let id = schema.message(name).map_err(|error| Status::internal(error.to_string()))?;
        schema.scan(id, &self.message, BOUNDS).map_err(refused)?;
        M::decode(self.message.clone()).map_err(|_| refused(Refusal::Malformed))
    }

    /// The tenant's etcd, for the steps of this call.
    pub(super) fn local(&self) -> Local {
        Local::new(self.tenant.clone(), self.headers.clone())
    }

    /// Asks the upstream by the same method.
    pub(super) async fn ask<M: Message + Default>(&self, request: &impl Message) -> Result<M, Status> {
        self.ask_by(self.path, request).await
    }

    /// Asks the upstream by another method.
    pub(super) async fn ask_by<M: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
    ) -> Result<M, Status> {
        Ok(self.ask_for_long(path, request, 1).await?.0)
    }

    /// The same, with what the answer has of the memory: so many times its length, if it is long.
    pub(super) async fn ask_for_long<M: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
        copies: usize,
    ) -> Result<(M, Option<Share>), Status> {
        ask(self.tenant, path, self.headers.clone(), request, copies).await
    }
}

/// Asks the upstream. Returns its answer, with what that has of the memory: so many times its length, if it is long.
async fn ask<M: Message + Default>(
    tenant: &Tenant,
    path: &'static str,
    headers: UpstreamHeaders,
    request: &impl Message,
    copies: usize,
) -> Result<(M, Option<Share>), Status> {
    let mut frame = BytesMut::new();
    framing::put_message(request, &mut frame)?;
    let (channel, budget) = (tenant.upstream().unary(), tenant.budget());
    let Received { message, share } = grpc::call(channel, path, headers, frame.freeze(), budget, copies).await?;
    let message = M::decode(message)
        .map_err(|error| Status::internal(format!("etcd-proxy: the upstream's answer cannot be decoded: {error}")))?;
    Ok((message, share))
}

/// The frame of an answer.
pub(super) fn answer(message: &impl Message) -> Result<BytesMut, Status> {
    let mut frame = BytesMut::new();
    framing::put_message(message, &mut frame)?;
    Ok(frame)
}
