//! Messages with something wrong in them.

use proptest::{collection::vec, prelude::*, sample::Index};

/// A change of bytes that may be a message's.
#[derive(Clone, Debug)]
pub(crate) enum Mangle {
    Flip {
        at: Index,
        bit: u8,
    },
    Cut {
        at: Index,
    },
    Insert {
        at: Index,
        bytes: Vec<u8>,
    },
    /// A part once more.
    Repeat {
        from: Index,
        to: Index,
    },
    /// A field of this number and wire type behind all others.
    Field {
        number: u32,
        wire: u8,
        bytes: Vec<u8>,
    },
    /// Groups in groups of one field.
    Groups {
        number: u8,
        levels: usize,
    },
    /// A message in a message by way of these fields, in turns.
    Nest {
        fields: [u8; 2],
        levels: usize,
    },
}

pub(crate) fn mangles() -> impl Strategy<Value = Vec<Mangle>> {
    let bytes = || vec(any::<u8>(), 0..24);
    let mangle = prop_oneof![
        6 => (any::<Index>(), 0u8..8).prop_map(|(at, bit)| Mangle::Flip { at, bit }),
        2 => any::<Index>().prop_map(|at| Mangle::Cut { at }),
        2 => (any::<Index>(), bytes()).prop_map(|(at, bytes)| Mangle::Insert { at, bytes }),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Mangle::Repeat { from, to }),
        2 => (1u32..1 << 29, 0u8..8, bytes()).prop_map(|(number, wire, bytes)| Mangle::Field { number, wire, bytes }),
        4 => (1u8..16, 1usize..60_000).prop_map(|(number, levels)| Mangle::Groups { number, levels }),
        1 => (any::<bool>(), 1usize..400).prop_map(|(success, levels)| Mangle::Nest {
            // `TxnRequest.success` or `failure`, and `RequestOp.request_txn`.
            fields: [if success { 2 } else { 3 }, 4],
            levels,
        }),
    ];
    prop_oneof![1 => Just(Vec::new()), 4 => vec(mangle, 1..4)]
}

// === impl Mangle ===

impl Mangle {
    pub(crate) fn apply(&self, message: &mut Vec<u8>) {
        match self {
            Self::Flip { at, bit } if !message.is_empty() => {
                let at = at.index(message.len());
                message[at] ^= 1 << bit;
            }
            Self::Flip { .. } => {}
            Self::Cut { at } => message.truncate(at.index(message.len() + 1)),
            Self::Insert { at, bytes } => {
                let at = at.index(message.len() + 1);
                message.splice(at..at, bytes.iter().copied());
            }
            Self::Repeat { from, to } => {
                let (from, to) = (from.index(message.len() + 1), to.index(message.len() + 1));
                message.extend_from_within(from.min(to)..from.max(to));
            }
            Self::Field { number, wire, bytes } => {
                prost::encoding::encode_varint(u64::from(number << 3 | u32::from(*wire)), message);
                if *wire == 2 {
                    prost::encoding::encode_varint(bytes.len() as u64, message);
                }
                message.extend(bytes);
            }
            Self::Groups { number, levels } => message.extend(vec![number << 3 | 3; *levels]),
            Self::Nest { fields, levels } => {
                for level in 0..*levels {
                    let mut outer = vec![fields[(level + 1) % 2] << 3 | 2];
                    prost::encoding::encode_varint(message.len() as u64, &mut outer);
                    outer.append(message);
                    *message = outer;
                }
            }
        }
    }
}
