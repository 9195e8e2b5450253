//! Arguments into a handler's type. The type says what it wants; nothing is tried and guessed but for one case.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::value::RawValue;
use serde_json::{Error, Result};
use std::collections::BTreeMap;

use crate::layout::Shape;

/// Positional and named arguments, as stored.
#[derive(Debug, Clone)]
pub(super) struct Arguments<'de> {
    args: Vec<&'de RawValue>,
    /// None if there are no named ones.
    kwargs: Option<&'de RawValue>,
    /// What they were, where they do not tell.
    shape: Option<Shape>,
}

impl<'de> Arguments<'de> {
    /// Takes the fields `args`, `kwargs` and `shape` of a body; missing and `null` mean none.
    pub(super) fn read(
        args: Option<&'de RawValue>,
        kwargs: Option<&'de RawValue>,
        shape: Option<&'de RawValue>,
    ) -> Result<Self> {
        let args: Vec<_> = match args {
            Some(list) => serde_json::from_str(list.get()).map_err(|_| Error::custom("args is not a list"))?,
            None => Vec::new(),
        };
        let inside = |object: &'de RawValue| object.get().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let kwargs = match kwargs.map(|object| (object, inside(object))) {
            Some((_, None)) => return Err(Error::custom("kwargs is not an object")),
            Some((object, Some(inside))) if !inside.trim().is_empty() => Some(object),
            _ => None,
        };
        // It may be of other arguments, if somebody has changed these.
        let shape = shape.and_then(|shape| Shape::read(shape.get()));
        let expected = usize::from(shape == Some(Shape::One));
        let shape = shape.filter(|_| args.len() == expected && kwargs.is_none());
        Ok(Self { args, kwargs, shape })
    }

    /// Into a handler's type. One positional argument is also taken for the whole, where it does not fit otherwise, and none for
    /// an empty list.
    pub(super) fn decode<A: DeserializeOwned>(&self) -> Result<A> {
        let error = match A::deserialize(self.clone()) {
            Ok(arguments) => return Ok(arguments),
            Err(error) => error,
        };
        match (self.args.as_slice(), self.kwargs) {
            ([one], None) => serde_json::from_str(one.get()).map_err(|_| error),
            ([], None) => A::deserialize(Self { shape: Some(Shape::List), ..self.clone() }).map_err(|_| error),
            _ => Err(error),
        }
    }

    /// The one positional argument, for types that are neither list nor object.
    fn one(self) -> Result<&'de RawValue> {
        match (self.args.as_slice(), self.kwargs) {
            ([one], None) => Ok(one),
            _ => Err(self.mismatch("one positional argument")),
        }
    }

    fn mismatch(&self, wanted: &str) -> Error {
        let named = if self.kwargs.is_some() { " and named ones" } else { "" };
        Error::custom(format_args!("the handler takes {wanted}, not {} positional{named}", self.args.len()))
    }

    fn is_empty(&self) -> bool {
        self.args.is_empty() && self.kwargs.is_none()
    }

    /// The one argument, if it is a value that is written as a list: bytes.
    fn bytes(&self) -> Option<&'de RawValue> {
        let one = *self.args.first().filter(|_| self.shape == Some(Shape::One))?;
        one.get().starts_with('[').then_some(one)
    }
}

/// `{}`.
fn nothing<'a>() -> Result<&'a RawValue> {
    serde_json::from_str("{}")
}

/// Types that one argument makes.
macro_rules! one {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            self.one()?.$method(visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for Arguments<'de> {
    type Error = Error;

    one! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128 deserialize_u8
        deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char
        deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf
    }

    /// A JSON value: what the producer gave. Who does not say has given the object if there are named arguments only, nothing if
    /// there are none, else the list.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.shape {
            Some(Shape::One) => self.one()?.deserialize_any(visitor),
            Some(Shape::Object) => self.deserialize_map(visitor),
            None if self.is_empty() => visitor.visit_unit(),
            None if self.args.is_empty() => self.deserialize_map(visitor),
            _ => self.deserialize_seq(visitor),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.is_empty() { visitor.visit_unit() } else { Err(self.mismatch("no arguments")) }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.is_empty() && self.shape.is_none() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.kwargs.is_some() {
            return Err(self.mismatch("positional arguments only"));
        }
        if let Some(bytes) = self.bytes() {
            return bytes.deserialize_seq(visitor);
        }
        visitor.visit_seq(SeqDeserializer::new(self.args.into_iter()))
    }

    /// The positional arguments; the named ones are the last element, which may be missing if there are none.
    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        if let Some(bytes) = self.bytes() {
            return bytes.deserialize_tuple(len, visitor);
        }
        let named = match self.kwargs {
            None if self.args.len() + 1 == len => Some(nothing()?),
            kwargs => kwargs,
        };
        let mut list = SeqDeserializer::new(self.args.into_iter().chain(named));
        let value = visitor.visit_seq(&mut list)?;
        list.end()?;
        Ok(value)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(self, _name: &'static str, len: usize, visitor: V) -> Result<V::Value> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if !self.args.is_empty() {
            return Err(self.mismatch("named arguments only"));
        }
        self.kwargs.map_or_else(nothing, Ok)?.deserialize_map(visitor)
    }

    /// As Python binds a call: positional arguments by the order of the fields, named ones by name.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let kwargs = self.kwargs.map_or_else(nothing, Ok)?;
        if self.args.is_empty() {
            return kwargs.deserialize_struct(name, fields, visitor);
        }
        if self.args.len() > fields.len() {
            return Err(self.mismatch(&format!("up to {} arguments", fields.len())));
        }
        let named: BTreeMap<String, &'de RawValue> = serde_json::from_str(kwargs.get())?;
        let positional = fields.iter().map(|field| (*field).to_owned()).zip(self.args);
        let mut object = MapDeserializer::new(positional.chain(named));
        let value = visitor.visit_map(&mut object)?;
        object.end()?;
        Ok(value)
    }

    /// A variant without data is one argument; one with data is an object, thus named.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let value = match self.kwargs {
            Some(kwargs) if self.args.is_empty() => kwargs,
            _ => self.one()?,
        };
        value.into_deserializer().deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! { identifier ignored_any }
}

#[cfg(test)]
mod tests;
