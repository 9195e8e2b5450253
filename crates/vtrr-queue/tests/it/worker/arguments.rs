//! From what a producer gives to what a handler gets.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use vtrr_queue::worker::BoxError;
use vtrr_queue::{Body, Context, ErrorKind, Retry, Runner, Task};

use super::bed::{Bed, Working, events};

#[derive(Debug, Serialize, Deserialize)]
struct Resize {
    path: String,
    width: u32,
    #[serde(default)]
    force: bool,
}

/// Tuple, list, single value, struct, map, nothing; as Rust producers, Celery and 0.1.0 write them.
pub(super) async fn arguments_arrive_typed(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events::<(&str, String)>();
    macro_rules! telling {
        ($name:literal, $type:ty) => {{
            let tell = tell.clone();
            move |_: Context, arguments: $type| {
                let tell = tell.clone();
                async move { tell.send(($name, format!("{arguments:?}"))).map_err(BoxError::from) }
            }
        }};
    }
    let worker = Working::start(
        bed.worker()
            .register("tuple", telling!("tuple", (String, i64)))
            .register("list", telling!("list", Vec<u8>))
            .register("one", telling!("one", String))
            .register("struct", telling!("struct", Resize))
            .register("map", telling!("map", HashMap<String, u8>))
            .register("both", telling!("both", (u8, Resize)))
            .register("nothing", telling!("nothing", ()))
            .register("big", telling!("big", Vec<u128>)),
    );
    let resize = Resize { path: "a".into(), width: 5, force: true };
    let python = |text: &str| Task::with_body(Body::from_json(text).unwrap());
    let tasks = [
        Task::new("tuple", &("a", 5)).unwrap(),
        Task::new("list", &[1, 2]).unwrap(),
        Task::new("one", &"a").unwrap(),
        Task::new("struct", &resize).unwrap(),
        Task::new("map", &HashMap::from([("a", 1)])).unwrap(),
        Task::new("both", &(7, &resize)).unwrap(),
        Task::new("nothing", &()).unwrap(),
        python(r#"{"task_name": "struct", "args": ["b"], "kwargs": {"width": 6}}"#),
        python(r#"{"task_name": "both", "args": [8], "kwargs": {"path": "c", "width": 7}}"#),
        python(r#"{"task_name": "one", "args": ["\u00df"], "kwargs": {}}"#),
        python(r#"{"task_name": "nothing", "args": null}"#),
        python(r#"{"task_name": "big", "args": [340282366920938463463374607431768211455]}"#),
    ];
    let n = tasks.len();
    bed.enqueue("p", tasks).await;
    let mut got = told.take(n).await;
    got.sort();
    let resize = |path, width, force| format!("Resize {{ path: {path:?}, width: {width}, force: {force} }}");
    let mut expected = vec![
        ("tuple", r#"("a", 5)"#.to_owned()),
        ("list", "[1, 2]".into()),
        ("one", r#""a""#.into()),
        ("struct", resize("a", 5, true)),
        ("map", r#"{"a": 1}"#.into()),
        ("both", format!("(7, {})", resize("a", 5, true))),
        ("nothing", "()".into()),
        ("struct", resize("b", 6, false)),
        ("both", format!("(8, {})", resize("c", 7, false))),
        ("one", r#""ß""#.into()),
        ("nothing", "()".into()),
        ("big", "[340282366920938463463374607431768211455]".into()),
    ];
    expected.sort();
    assert_eq!(got, expected);
    assert_eq!(worker.stop().await.succeeded, n as u64);
}

pub(super) async fn arguments_that_do_not_fit_are_a_dead_letter_at_once(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let handler = async |_: Context, _: (String, u8)| Ok::<_, BoxError>(());
    let options = vtrr_queue::worker::Options::new().autoretry_any();
    let worker = Working::start(bed.worker().register_with("t", options, handler));
    bed.enqueue("p", [Task::new("t", &("a", 300)).unwrap()]).await;
    let letter = bed.dead_letters(1).await.remove(0);
    assert!(letter.error.starts_with("arguments do not fit the handler: invalid value"), "{}", letter.error);
    assert_eq!((letter.deliveries, worker.stop().await.failed), (1, 1));
}

pub(super) async fn an_unreadable_payload_is_a_dead_letter_and_the_next_task_runs(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let body = |text: &str| Task::with_body(Body::from_json(text).unwrap());
    let bodies = [r#"{"task_name":}"#, r#"{"args":[]}"#, r#"{"task_name":"t","args":[NaN]}"#].map(body);
    bed.enqueue("p", bodies).await;
    bed.enqueue_call("t").await;
    let worker = Working::start(bed.worker().register("t", async |_: Context, (): ()| Ok::<_, BoxError>(())));
    for letter in bed.dead_letters(3).await {
        assert!(letter.error.starts_with("unreadable payload: "), "{}", letter.error);
    }
    bed.drained().await;
    let summary = worker.stop().await;
    assert_eq!((summary.failed, summary.succeeded), (3, 1));
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(i64),
    List(Vec<u8>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Empty {}

/// Runs a task with this argument: what its handler gets, first at once and then by a retry with the same.
async fn comes_out<A>(bed: &Bed<impl Runner + Clone + 'static>, value: A)
where
    A: Serialize + serde::de::DeserializeOwned + std::fmt::Debug + Clone + PartialEq + Send + 'static,
{
    let (tell, mut told) = events();
    let worker = Working::start(bed.worker().register("t", move |context: Context, value: A| {
        let again = (context.retries() == 0).then(|| Retry::after(Duration::ZERO).args(&value).unwrap());
        tell.send(value).unwrap();
        async move { again.map_or(Ok(()), Err) }
    }));
    bed.enqueue("p", [Task::new("t", &value).unwrap()]).await;
    assert_eq!(told.take(2).await, [value.clone(), value]);
    bed.drained().await;
    worker.stop().await;
}

pub(super) async fn what_goes_in_comes_out(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    for value in [json!(null), json!(1), json!([1]), json!("a"), json!([]), json!({}), json!({"a": []})] {
        comes_out(&bed, value).await;
    }
    for value in [Untagged::Number(1), Untagged::List(vec![1]), Untagged::List(vec![])] {
        comes_out(&bed, value.clone()).await;
        comes_out(&bed, Some(value)).await;
    }
    comes_out(&bed, Some(Empty {})).await;
    comes_out(&bed, None::<Empty>).await;
    comes_out(&bed, Some(Vec::<u8>::new())).await;
    comes_out(&bed, (1, "a".to_owned())).await;
    // Nothing else is stored.
    for (refused, words) in [
        (Task::new("t", &f64::INFINITY), "arguments must be finite in each float: JSON has no others, not inf"),
        (Task::new("t", &(1, vec![f64::NAN])), "not NaN"),
        (Task::new("t", &Some(())), "not a `Some` of nothing"),
    ] {
        let error = refused.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(words), "{error}");
    }
}
