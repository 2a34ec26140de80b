//! `Maintenance.Snapshot`: the tenant alone, as the database of an etcd, in pieces as etcd sends its own
//! (`server/etcdserver/api/v3rpc/maintenance.go`).

use bytes::{Bytes, BytesMut};
use http::Response;
use proto::etcdserverpb::{SnapshotRequest, SnapshotResponse};
use ring::digest::{self, SHA256};
use std::io;
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Status, body::Body};

use super::{ClientCall, own_stream, unary::OwnCall};
use crate::{
    grpc::framing,
    metrics::Call,
    snapshot::{self, Snapshot, bbolt},
    tenant::Tenant,
};

/// Bytes of the file in a message; etcd's `snapshotSendBufferSize`.
const PIECE: usize = 32 * 1024;
/// Bytes of messages that are made at a time.
const BATCH: usize = 8 * PIECE;

/// A snapshot on its way to the client.
struct Sending {
    file: bbolt::File,
    version: String,
    /// Read from the file and not yet sent.
    pages: BytesMut,
    /// What was not sent yet, `pages` among it.
    remaining: u64,
    /// `None` once it was sent.
    checksum: Option<digest::Context>,
    _place: OwnedSemaphorePermit,
}

/// Carries out the call.
pub(super) async fn serve(tenant: &Tenant, client: ClientCall, call: Call) -> Result<Response<Body>, Status> {
    let ClientCall { path, headers, deadline, incoming } = client;
    own_stream::serve(tenant, deadline, call, tenant.answer_patience(), async move {
        let message = incoming.only().await?.message;
        let _: SnapshotRequest =
            OwnCall { tenant, path, headers, message }.streaming_request("etcdserverpb.SnapshotRequest")?;
        let place = tenant.snapshot_place().await?;
        let Snapshot { file, revision, version } = snapshot::take(tenant).await?;
        tracing::info!(revision, bytes = file.size(), storage_version = version, "sending a snapshot to a client");
        let sending = Sending {
            remaining: file.size(),
            file,
            version,
            pages: BytesMut::new(),
            checksum: Some(digest::Context::new(&SHA256)),
            _place: place,
        };
        Ok(futures::stream::try_unfold(sending, async |mut sending| {
            snapshot::blocking(move || {
                let messages = sending.messages()?;
                Ok((!messages.is_empty()).then_some((messages, sending)))
            })
            .await
        }))
    })
    .await
}

// === impl Sending ===

impl Sending {
    /// The frames of the next messages; none at the end.
    fn messages(&mut self) -> io::Result<Bytes> {
        let mut frames = BytesMut::new();
        while frames.len() < BATCH {
            let Some(blob) = self.piece()? else { break };
            let message =
                SnapshotResponse { header: None, remaining_bytes: self.remaining, blob, version: self.version.clone() };
            framing::put_message(&message, &mut frames).map_err(io::Error::other)?;
        }
        Ok(frames.freeze())
    }

    /// The next piece of the file, and after the last one the checksum of them all.
    fn piece(&mut self) -> io::Result<Option<Bytes>> {
        while self.pages.len() < PIECE {
            match self.file.next_pages()? {
                Some(pages) => self.pages.extend_from_slice(&pages),
                None => break,
            }
        }
        if self.pages.is_empty() {
            return Ok(self.checksum.take().map(|checksum| Bytes::copy_from_slice(checksum.finish().as_ref())));
        }
        let piece = self.pages.split_to(PIECE.min(self.pages.len())).freeze();
        if let Some(checksum) = &mut self.checksum {
            checksum.update(&piece);
        }
        self.remaining = self.remaining.saturating_sub(piece.len() as u64);
        Ok(Some(piece))
    }
}
