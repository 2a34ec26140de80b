//! The tables by which types get their form.

/// Gives types their form in protocol buffers: one table beside the type, with a number for each field.
///
/// ```
/// use apiserver::{meta::ObjectMeta, protobuf};
///
/// #[derive(Clone, Debug, Default, PartialEq)]
/// struct Pizza {
///     metadata: ObjectMeta,
///     spec: PizzaSpec,
/// }
///
/// #[derive(Clone, Debug, Default, PartialEq)]
/// struct PizzaSpec {
///     toppings: Vec<String>,
///     slices: Option<i64>,
/// }
///
/// protobuf! {
///     Pizza {
///         metadata = 1,
///         spec = 2,
///     }
///     PizzaSpec {
///         toppings = 1,
///         slices = 2,
///     }
/// }
///
/// let pizza = Pizza { spec: PizzaSpec { toppings: vec!["salami".to_owned()], slices: None }, ..Pizza::default() };
/// let bytes = protobuf::encode(&pizza);
/// assert_eq!(protobuf::decode(&bytes), Ok(pizza));
/// ```
///
/// Numbers are for ever: a new field takes a new one, and the number of a removed field is not used again. They rise from
/// field to field, which is the order of the fields on the wire. Every field of the type is named; a field that is not
/// encoded, and has its default when decoded, stands in a last line `; skip one, other`. All this is seen to by the compiler.
///
/// | in Rust | in Go | written |
/// |---|---|---|
/// | `T` | `T` | always |
/// | `Option<T>` | `*T` | when it is there |
/// | `Option<T>`, marked `always` | `T` | always; absent is zero, and zero is absent |
/// | `Vec<T>`, `BTreeMap<K, V>`, and `Option` of them | `[]T`, `map[K]V` | item by item |
/// | `Vec<T>`, marked `wrapped` | a named type: `type Verbs []string` | always, as a message with the items in field 1 |
///
/// `T` is a `String`, `bool`, `i32`, `i64`, `u32`, `u64`, `f32`, `f64`, a `ByteString`, one of the types that all APIs share
/// (`Time`, `Condition`, `LabelSelector`, `Quantity`, `IntOrString`, …), or a type with a table. A type that is a text in
/// JSON, as enumerations are, is one here too when it is named as text:
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// #[derive(Clone, Default, Serialize, Deserialize)]
/// enum Size {
///     #[default]
///     Normal,
///     Large,
/// }
///
/// apiserver::protobuf! { text Size }
/// ```
///
/// A field that is forgotten, and numbers that do not rise, do not compile:
///
/// ```compile_fail,E0063
/// struct Pair {
///     one: String,
///     other: String,
/// }
///
/// apiserver::protobuf! { Pair { one = 1 } }
/// ```
///
/// ```compile_fail,E0080
/// struct Pair {
///     one: String,
///     other: String,
/// }
///
/// apiserver::protobuf! { Pair { one = 1, other = 1 } }
/// ```
#[macro_export]
macro_rules! protobuf {
    ($(text $type:ident)+) => {$(
        impl $crate::protobuf::Value for $type {
            const WIRE_TYPE: $crate::protobuf::WireType = $crate::protobuf::WireType::Delimited;

            fn zero() -> Self {
                ::core::default::Default::default()
            }

            fn write(&self, out: &mut ::std::vec::Vec<u8>) {
                $crate::protobuf::write_text(self, out);
            }

            fn merge(
                &mut self,
                reader: &mut $crate::protobuf::Reader<'_>,
                field: $crate::protobuf::FieldName,
            ) -> ::core::result::Result<(), $crate::protobuf::Error> {
                *self = $crate::protobuf::read_text(reader, field)?;
                ::core::result::Result::Ok(())
            }
        }
    )+};

    ($($type:ident {
        $($field:ident = $number:literal $($mode:ident)?),* $(,)?
        $(; skip $($skipped:ident),+ $(,)?)?
    })+) => {$(
        const _: () = $crate::protobuf::check_numbers(&[$($number),*]);

        impl $crate::protobuf::Message for $type {
            const NAME: &'static str = stringify!($type);

            fn empty() -> Self {
                Self {
                    $($field: $crate::protobuf::Field::absent(),)*
                    $($($skipped: ::core::default::Default::default(),)+)?
                }
            }

            fn write_fields(&self, out: &mut ::std::vec::Vec<u8>) {
                $($crate::protobuf!(@write ($($mode)?) &self.$field, $number, out);)*
            }

            fn merge_field(
                &mut self,
                key: $crate::protobuf::Key,
                reader: &mut $crate::protobuf::Reader<'_>,
            ) -> ::core::result::Result<bool, $crate::protobuf::Error> {
                match key.number() {
                    $($number => {
                        const NAME: $crate::protobuf::FieldName = $crate::protobuf::FieldName::new(stringify!($field));
                        $crate::protobuf!(@merge ($($mode)?) &mut self.$field, key, reader, NAME)?;
                    })*
                    _ => return ::core::result::Result::Ok(false),
                }
                ::core::result::Result::Ok(true)
            }
        }
    )+};

    (@write () $field:expr, $number:literal, $out:ident) => {
        $crate::protobuf::Field::write_field($field, $number, $out)
    };
    (@write (always) $field:expr, $number:literal, $out:ident) => {
        $crate::protobuf::AlwaysField::write_always($field, $number, $out)
    };
    (@write (wrapped) $field:expr, $number:literal, $out:ident) => {
        $crate::protobuf::WrappedField::write_wrapped($field, $number, $out)
    };
    (@merge () $field:expr, $key:ident, $reader:ident, $name:ident) => {
        $crate::protobuf::Field::merge_field($field, $key, $reader, $name)
    };
    (@merge (always) $field:expr, $key:ident, $reader:ident, $name:ident) => {
        $crate::protobuf::AlwaysField::merge_always($field, $key, $reader, $name)
    };
    (@merge (wrapped) $field:expr, $key:ident, $reader:ident, $name:ident) => {
        $crate::protobuf::WrappedField::merge_wrapped($field, $key, $reader, $name)
    };
}

/// Ends the compilation when numbers do not rise, or are none that fields can have.
#[doc(hidden)]
pub const fn check_numbers(numbers: &[u32]) {
    let mut rest = numbers;
    let mut last = 0;
    while let [number, following @ ..] = rest {
        assert!(*number > last, "the numbers of fields rise from 1");
        assert!(*number < 1 << 29, "the number of a field has 29 bits");
        assert!(*number < 19_000 || *number > 19_999, "these numbers are reserved by protocol buffers");
        last = *number;
        rest = following;
    }
}
