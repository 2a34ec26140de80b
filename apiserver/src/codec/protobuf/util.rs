//! The shared types outside of `meta`: k8s.io/apimachinery `pkg/api/resource` and `pkg/util/intstr`.

use k8s_openapi::apimachinery::pkg::{api::resource, util::intstr};

use super::{Error, FieldName, Reader, Value, WireType};
use crate::protobuf;

/// What a quantity is on the wire.
struct Quantity {
    string: String,
}

/// What a number or text is on the wire.
struct IntOrString {
    type_: i64,
    int_val: i32,
    str_val: String,
}

protobuf! {
    Quantity {
        string = 1,
    }
    IntOrString {
        type_ = 1,
        int_val = 2,
        str_val = 3,
    }
}

/// The text travels as it is, where Go brings it into its canonical form.
impl Value for resource::Quantity {
    const WIRE_TYPE: WireType = WireType::Delimited;

    fn zero() -> Self {
        Self("0".to_owned())
    }

    fn write(&self, out: &mut Vec<u8>) {
        // Go writes no empty text, and reads none.
        let string = if self.0.is_empty() { "0".to_owned() } else { self.0.clone() };
        Quantity { string }.write(out);
    }

    fn write_zero(out: &mut Vec<u8>) {
        Self::zero().write(out);
    }

    fn merge(&mut self, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
        let mut quantity = Quantity { string: std::mem::take(&mut self.0) };
        quantity.merge(reader, field)?;
        self.0 = quantity.string;
        Ok(())
    }
}

impl Value for intstr::IntOrString {
    const WIRE_TYPE: WireType = WireType::Delimited;

    fn zero() -> Self {
        Self::Int(0)
    }

    fn write(&self, out: &mut Vec<u8>) {
        let form = match self {
            Self::Int(number) => IntOrString { type_: 0, int_val: *number, str_val: String::new() },
            Self::String(text) => IntOrString { type_: 1, int_val: 0, str_val: text.clone() },
        };
        form.write(out);
    }

    fn write_zero(out: &mut Vec<u8>) {
        Self::zero().write(out);
    }

    fn merge(&mut self, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
        let mut form = IntOrString::zero();
        form.merge(reader, field)?;
        *self = match form.type_ {
            0 => Self::Int(form.int_val),
            1 => Self::String(form.str_val),
            _ => return Err(Error::Unsuitable { field, message: "impossible IntOrString.Type".to_owned() }),
        };
        Ok(())
    }
}
