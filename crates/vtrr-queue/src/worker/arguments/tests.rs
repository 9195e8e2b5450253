//! From a producer's value to a handler's type, without a queue between them.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::*;
use crate::task::{Body, Payload};
use crate::worker::stored::Stored;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Resize {
    path: String,
    width: u32,
    #[serde(default)]
    force: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Form {
    Point,
    Circle { radius: u8 },
}

fn decode<A: DeserializeOwned>(args: &str, kwargs: &str) -> Result<A> {
    Arguments::read(Some(serde_json::from_str(args)?), Some(serde_json::from_str(kwargs)?), None)?.decode()
}

fn round<A: Serialize + DeserializeOwned>(arguments: &A) -> A {
    let body = Body::call("t", arguments).unwrap();
    let payload = Payload([b"{", body.rest()].concat());
    let stored = Stored::read(&payload).unwrap();
    Arguments::read(stored.args, stored.kwargs, stored.shape).unwrap().decode().unwrap()
}

#[test]
fn what_a_producer_gives_is_what_a_handler_gets() {
    assert_eq!(round(&()), ());
    assert_eq!(round(&5), 5);
    assert_eq!(round(&"a".to_owned()), "a");
    assert_eq!(round(&("a".to_owned(), 5, [1, 2])), ("a".to_owned(), 5, [1, 2]));
    assert_eq!(round(&(vec![1, 2],)), (vec![1, 2],));
    assert_eq!(round(&vec![1, 2, 3]), [1, 2, 3]);
    assert_eq!(round(&vec![vec![1, 2]]), [[1, 2]]);
    assert_eq!(round(&None::<u8>), None);
    assert_eq!(round(&Some(1.5)), Some(1.5));
    let resize = || Resize { path: "a".into(), width: 5, force: true };
    assert_eq!(round(&resize()), resize());
    assert_eq!(round(&(1, resize())), (1, resize()));
    assert_eq!((round(&Form::Point), round(&Form::Circle { radius: 3 })), (Form::Point, Form::Circle { radius: 3 }));
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Nothing,
    Number(i64),
    Text(String),
    List(Vec<u8>),
    Named { a: u8 },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Empty {}

/// Bytes as `serde_bytes` has them.
#[derive(Debug, PartialEq)]
struct Bytes(Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Vec<u8>, A::Error> {
                std::iter::from_fn(|| list.next_element().transpose()).collect()
            }
        }
        deserializer.deserialize_byte_buf(List).map(Self)
    }
}

#[test]
fn a_handler_that_takes_anything_gets_what_the_producer_gave() {
    for value in [json!(null), json!(1), json!("a"), json!(true), json!([]), json!([1]), json!([[]]), json!([[1, 2]])] {
        assert_eq!(round(&value), value);
        assert_eq!(round(&vec![value.clone()]), std::slice::from_ref(&value));
        assert_eq!(round(&(value.clone(),)), (value.clone(),));
        if !value.is_null() {
            assert_eq!(round(&Some(value.clone())), Some(value));
        }
    }
    for value in [json!({}), json!({"a": 1}), json!({"a": {}}), json!([{}]), json!([null]), json!(1.5), json!(u64::MAX)] {
        assert_eq!(round(&value), value);
        assert_eq!(round(&Some(value.clone())), Some(value));
    }
    let list = |list: &[u8]| Untagged::List(list.into());
    let text = Untagged::Text("a".into());
    for value in
        [Untagged::Nothing, Untagged::Number(1), text, list(&[]), list(&[1]), list(&[1, 2]), Untagged::Named { a: 1 }]
    {
        assert_eq!(round(&value), value);
    }
}

#[test]
fn something_that_is_empty_is_not_nothing() {
    assert_eq!(round(&Some(Empty {})), Some(Empty {}));
    assert_eq!(round(&Some(Vec::<u8>::new())), Some(Vec::new()));
    assert_eq!(round(&Some(BTreeMap::<String, u8>::new())), Some(BTreeMap::new()));
    assert_eq!((round(&Empty {}), round(&Vec::<u8>::new())), (Empty {}, Vec::new()));
    assert_eq!((round(&None::<Empty>), round(&None::<Vec<u8>>)), (None, None));
}

#[test]
fn bytes_are_one_argument() {
    for bytes in [vec![], vec![1], vec![1, 2, 3]] {
        assert_eq!(round(&Bytes(bytes.clone())).0, bytes);
        assert_eq!(round(&Some(Bytes(bytes.clone()))).unwrap().0, bytes);
        assert_eq!(round(&(Bytes(bytes.clone()), 5)).0.0, bytes);
    }
    let of = |args, shape| Arguments::read(Some(args), None, Some(shape)).unwrap();
    let raw = |text: &'static str| serde_json::from_str::<&RawValue>(text).unwrap();
    assert_eq!(of(raw("[[1,2]]"), raw("\"one\"")).decode::<Vec<u8>>().unwrap(), [1, 2]);
    assert_eq!(of(raw("[[1,2]]"), raw("\"one\"")).decode::<[u8; 2]>().unwrap(), [1, 2]);
}

/// Others may have a field of that name, or have put other arguments in place.
#[test]
fn a_shape_that_does_not_fit_means_nothing() {
    for shape in ["null", "7", "{}", "\"x\"", "\"one\"", "\"list\"", "\"object\""] {
        let of = |args| Arguments::read(Some(args), None, Some(serde_json::from_str(shape).unwrap())).unwrap();
        assert_eq!(
            of(serde_json::from_str("[1,2]").unwrap()).decode::<serde_json::Value>().unwrap(),
            json!([1, 2]),
            "{shape}"
        );
        assert_eq!(of(serde_json::from_str("[1]").unwrap()).decode::<(u8,)>().unwrap(), (1,), "{shape}");
        assert_eq!(of(serde_json::from_str("[]").unwrap()).decode::<Vec<u8>>().unwrap(), [0; 0], "{shape}");
    }
    // Of Python, without arguments.
    assert_eq!(decode::<Untagged>("[]", "{}").unwrap(), Untagged::Nothing);
    assert_eq!(decode::<Strict>("[]", "{}").unwrap(), Strict::List(Vec::new()));
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Strict {
    Number(i64),
    List(Vec<u8>),
}

#[test]
fn a_float_is_the_same_to_the_last_bit() {
    let mut bits = 88_172_645_463_325_252_u64;
    for _ in 0..10_000 {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let ordinary = bits as f64 / 1e16;
        for float in [ordinary, f64::from_bits(bits)].into_iter().filter(|float| float.is_finite()) {
            assert_eq!(round(&float).to_bits(), float.to_bits(), "{float}");
        }
    }
}

#[test]
fn a_struct_takes_arguments_as_python_binds_them() {
    let expected = Resize { path: "a".into(), width: 5, force: true };
    assert_eq!(decode::<Resize>(r#"["a"]"#, r#"{"force":true,"width":5}"#).unwrap(), expected);
    assert_eq!(decode::<Resize>(r#"["a",5,true]"#, "{}").unwrap(), expected);
    assert_eq!(decode::<Resize>(r#"[{"path":"a","width":5,"force":true}]"#, "{ }").unwrap(), expected);
    for (args, kwargs, words) in [
        (r#"["a",5]"#, r#"{"width":6}"#, "duplicate field `width`"),
        (r#"["a",5,true,1]"#, "{}", "up to 3 arguments, not 4"),
        (r#"["a"]"#, "{}", "missing field `width`"),
    ] {
        let error = decode::<Resize>(args, kwargs).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn one_argument_is_also_the_whole() {
    assert_eq!(decode::<Vec<u8>>("[[1,2]]", "{}").unwrap(), [1, 2]);
    assert_eq!(decode::<Option<u8>>("[null]", "{}").unwrap(), None);
    assert_eq!(decode::<BTreeMap<String, u8>>(r#"[{"a":1}]"#, "{}").unwrap(), [("a".to_owned(), 1)].into());
    assert_eq!(decode::<(u8, BTreeMap<String, u8>)>("[1]", r#"{"a":1}"#).unwrap().1.len(), 1);
    assert_eq!(decode::<(u8, BTreeMap<String, u8>)>("[1]", "{}").unwrap().1.len(), 0);
    assert_eq!(decode::<serde_json::Value>("[1]", "{}").unwrap(), json!([1]));
    assert_eq!(decode::<serde_json::Value>("[]", r#"{"a":1}"#).unwrap(), json!({"a": 1}));
}

#[test]
fn what_does_not_fit_is_told() {
    for (error, words) in [
        (decode::<String>("[]", "{}").map(drop), "one positional argument, not 0 positional"),
        (decode::<String>("[1]", "{}").map(drop), "expected a string"),
        (decode::<()>("[1]", "{}").map(drop), "no arguments, not 1 positional"),
        (decode::<(u8, u8)>("[1,2,3]", "{}").map(drop), "invalid length 3"),
        (decode::<Vec<u8>>("[1]", r#"{"a":1}"#).map(drop), "positional arguments only, not 1 positional and named ones"),
        (decode::<u8>("{}", "{}").map(drop), "args is not a list"),
        (decode::<u8>("[1]", "[]").map(drop), "kwargs is not an object"),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
