//! Request shapes that accept objects only. Derived shapes accept arrays too, with the fields in their order.

use serde::de::{Deserializer, Visitor};
use serde::forward_to_deserialize_any;

/// Implements serde's traits for types that derive them with `remote = "Self"`, and lets each be read from an object only.
macro_rules! objects_only {
    ($($name:ident),+ $(,)?) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $name::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                $name::deserialize($crate::types::object::ObjectOnly(deserializer))
            }
        }
    )+};
}

pub(crate) use objects_only;

/// A deserializer whose structs are objects. Refuses everything else with the place of the value.
pub(crate) struct ObjectOnly<D>(pub(crate) D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for ObjectOnly<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
