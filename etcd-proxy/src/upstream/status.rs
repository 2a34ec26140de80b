//! What a broken way to the upstream looks like to a client: one place for the codes.
//!
//! grpc-go, which etcd's clients are made for, answers the loss of a connection with `Unavailable`; a stream that the
//! peer reset keeps the code that gRPC over HTTP/2 gives to the reason.

use std::error::Error;

use tonic::{Code, Status};

/// Text of the status while no endpoint answers. It is the one by which etcd's Go client knows that a request was surely not
/// sent, so that it sends a write again, too, for some seconds (`client/v3/retry.go`, `isSafeRetryMutableRPC`). The addresses
/// stay in the log: they are not the tenant's business.
const UNAVAILABLE: &str = "there is no connection available";
/// Text of the status of a request or stream that was under way when its connection broke, with grpc-go's words at the end.
const LOST: &str = "etcd-proxy: the connection to the upstream etcd was lost: error reading from server: EOF";

/// No endpoint could be reached; the request was not sent.
pub(super) fn unavailable() -> Status {
    Status::unavailable(UNAVAILABLE)
}

/// The connection failed while a request was under way on it.
pub(super) fn from_hyper(error: hyper::Error) -> Status {
    let reset = error.source().and_then(|source| source.downcast_ref::<h2::Error>()).is_some_and(is_reset);
    broken(reset, error)
}

/// The connection failed while a request was under way on it.
pub(super) fn from_h2(error: h2::Error) -> Status {
    broken(is_reset(&error), error)
}

/// Whether the peer reset the stream.
fn is_reset(error: &h2::Error) -> bool {
    error.is_reset() && error.is_remote()
}

fn broken(reset: bool, error: impl Error + Send + Sync + 'static) -> Status {
    if reset {
        let status = Status::from_error(Box::new(error));
        if status.code() != Code::Unknown {
            return status;
        }
        return Status::unavailable(LOST);
    }
    tracing::debug!(error = &error as &dyn Error, "upstream connection lost under a request");
    Status::unavailable(LOST)
}
