//! gRPC over HTTP/2 as far as a proxy needs it: frames, unary calls, and streams that are rewritten frame by frame.
//!
//! Frames are handled here and not by tonic's codecs so that limits and errors read as grpc-go's do, which etcd's clients
//! know, and so that a message can be passed on without being a typed message.

mod budget;
mod delivered;
pub mod framing;
mod headers;
mod incoming;
mod patient;
mod seen;
mod unary;
mod untaken;
pub(crate) mod until_closing;
pub(crate) mod until_end;

pub(crate) use self::delivered::Delivered;
pub use self::{
    budget::{Budget, LONG, NoShare, Share},
    headers::{
        Deadline, Undecoded, UpstreamHeaders, check_response, deadline_exceeded, malformed, status_of, trailers,
        whole_path,
    },
    incoming::{Arrived, Incoming},
    patient::{Abandon, PIECE, Patience, Patient},
    seen::{Fault, Seen},
    unary::{NoAnswer, Received, UnaryBody, call, read_answer},
    untaken::Calls,
};
