//! The same list on every runner, and what each way to connect promises.

use std::thread;
use std::time::Duration;

use redis::sentinel::{SentinelClient, SentinelServerType};
use vtrr_queue::{Blocking, ErrorKind, Memory, Queue, Redis, Runner};

use super::sentinel::Sentinel;
use super::{Async, Runs, ack, chain, dequeue, enqueue, queue, socket_url, tasks, tls_url};
use crate::crash::until;
use crate::errors::slot;
use crate::server::{Kind, Server};

/// Enqueues for two partitions, takes the tasks in fair order, settles them, and looks.
fn conforms(runner: &mut impl Runs, name: &str) {
    let queue = queue(name);
    assert_eq!(dequeue(runner, &queue, 10).deliveries, []);
    for (partition, n) in [("alice", 2), ("bob", 1)] {
        let enqueued = runner.run(queue.enqueue(partition, tasks(n)).unwrap()).unwrap();
        assert_eq!((enqueued.ids.len(), enqueued.duplicates.len()), (n, 0));
    }
    let dequeued = dequeue(runner, &queue, 10);
    let partitions: Vec<_> = dequeued.deliveries.iter().map(|it| it.payload.partition().unwrap().to_string()).collect();
    assert_eq!(partitions, ["alice", "bob", "alice"]);
    let arguments = dequeued.deliveries[0].payload.invocation().unwrap();
    assert_eq!(arguments.task_name, "resize");
    ack(runner, &queue, &dequeued);
    let totals = runner.run(queue.stats()).unwrap();
    assert_eq!((totals.queued, totals.leased, totals.totals["acked"]), (0, 0, 3));
    // Several calls for one command.
    enqueue(runner, &queue, 2_500);
    let over = queue.enqueue("alice", tasks(1_500)).unwrap().max_queued(3_999).unwrap();
    assert_eq!(runner.run(over).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(runner.run(queue.purge_all()).unwrap().purged, 2_500);
}

#[test]
fn memory() {
    conforms(&mut Memory::new(), "q");
}

#[test]
fn every_server_async_and_blocking() {
    for kind in Kind::ALL {
        let url = Server::shared(kind).url();
        conforms(&mut Async::new(Redis::connect(&url).unwrap()), "runners-async");
        conforms(&mut Async::new(Redis::connect(&format!("{url}?protocol=resp3")).unwrap()), "runners-resp3");
        conforms(&mut Blocking::connect(&url).unwrap(), "runners-blocking");
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_connection().unwrap();
        conforms(&mut Blocking::new(&mut connection), "runners-borrowed");
        conforms(&mut Blocking::new(connection), "runners-owned");
        conforms(&mut Async::new(Redis::connect_with(client)), "runners-client");
    }
}

#[test]
fn unix_socket() {
    let url = socket_url(Server::shared(Kind::Redis));
    conforms(&mut Async::new(Redis::connect(&url).unwrap()), "runners-socket");
    conforms(&mut Blocking::connect(&url.replace("unix:", "redis+unix:")).unwrap(), "runners-socket-blocking");
}

#[test]
fn tls() {
    let server = Server::options(Kind::Redis).tls().password("s3cret").start();
    let url = tls_url(&server);
    conforms(&mut Async::new(Redis::connect(&url).unwrap()), "async");
    conforms(&mut Blocking::connect(&url).unwrap(), "blocking");
}

#[test]
fn user_password_and_database() {
    let server = Server::start(Kind::Redis);
    server.command(&["ACL", "SETUSER", "us@er", "on", ">p/w: %", "~*", "&*", "+@all"]).unwrap();
    let url = format!("redis://us%40er:p%2Fw%3A%20%25@127.0.0.1:{}/3", server.port());
    conforms(&mut Async::new(Redis::connect(&url).unwrap()), "async");
    conforms(&mut Blocking::connect(&url).unwrap(), "blocking");
    let keys = server.command(&["INFO", "keyspace"]).unwrap();
    assert!(keys.contains("db3:") && !keys.contains("db0:"), "{keys}");
}

#[test]
fn cluster() {
    let server = Server::options(Kind::Redis).password("s3cret").cluster().start();
    let url = server.url();
    let mut runner = Async::new(Redis::cluster([&url]).unwrap());
    conforms(&mut runner, "{files}");
    let error = runner.run(queue("files").enqueue("alice", tasks(1)).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(text.starts_with("name must be") && text.contains("\"{files}\"") && text.ends_with("\"files\""), "{text}");
    // Of a cluster that does not know, the advice is the server's refusal.
    let client = redis::cluster::ClusterClient::new(vec![url.clone()]).unwrap();
    let mut blocking = Blocking::new(client.get_connection().unwrap());
    conforms(&mut blocking, "{files}-blocking");
    let mut given = Async::new(Redis::connect(&url).unwrap());
    let connection = given.0.block_on(client.get_async_connection()).unwrap();
    given.1 = Redis::from_connection(connection);
    conforms(&mut given, "{files}-given");
    let errors = [
        blocking.run(queue("files").enqueue("alice", tasks(1)).unwrap()).unwrap_err(),
        given.run(queue("files").enqueue("alice", tasks(1)).unwrap()).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("\"{files}\""), "{error}");
    }
}

/// Three nodes that share the slots.
fn three_nodes() -> Vec<Server> {
    let nodes: Vec<Server> = (0..3).map(|_| Server::options(Kind::Redis).cluster_node().start()).collect();
    for (node, [first, last]) in nodes.iter().zip([["0", "5460"], ["5461", "10921"], ["10922", "16383"]]) {
        node.command(&["CLUSTER", "ADDSLOTSRANGE", first, last]).unwrap();
        nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string()]).unwrap();
    }
    let knows_all = |node: &Server| {
        let info = node.command(&["CLUSTER", "INFO"]).unwrap();
        info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3") && info.contains("cluster_size:3")
    };
    until("the cluster forms", || nodes.iter().all(knows_all));
    nodes
}

#[test]
fn a_queue_is_found_on_any_node_of_a_cluster_and_followed_when_its_slot_moves() {
    let nodes = three_nodes();
    let mut runner = Async::new(Redis::cluster([nodes[0].url()]).unwrap());
    let mut used = [false; 3];
    let node_of = |name: &str| usize::from(slot(name).min(16_382) / 5_461);
    for name in ["a", "b", "c", "d", "e", "f"] {
        used[node_of(name)] = true;
        conforms(&mut runner, &format!("{{{name}}}"));
    }
    assert_eq!(used, [true; 3]);

    let queue = queue("{moves}");
    let (slot, from) = (slot("moves").to_string(), node_of("moves"));
    let to = (from + 1) % 3;
    enqueue(&mut runner, &queue, 20);
    assert_eq!(dequeue(&mut runner, &queue, 5).deliveries.len(), 5);
    let id = |node: &Server| node.command(&["CLUSTER", "MYID"]).unwrap().lines().nth(1).unwrap().to_owned();
    let ids: Vec<_> = nodes.iter().map(id).collect();
    nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[from]]).unwrap();
    nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[to]]).unwrap();
    let keys = nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).unwrap();
    let keys: Vec<_> = keys.lines().filter(|line| line.starts_with("vtrr:")).collect();
    assert!(keys.len() > 5, "{keys:?}");
    let migrate = |keys: &[&str]| {
        for key in keys {
            let words = ["MIGRATE", "127.0.0.1", &nodes[to].port().to_string(), key, "0", "5000"];
            assert!(nodes[from].command(&words).unwrap().starts_with("+OK"), "{key}");
        }
    };
    migrate(&keys[..3]);
    // Half of the keys here, half there: who calls now waits until they are together again.
    let dequeued = thread::scope(|scope| {
        let waiting = scope.spawn(|| dequeue(&mut Async::new(Redis::cluster([nodes[0].url()]).unwrap()), &queue, 20));
        thread::sleep(Duration::from_millis(500));
        assert!(!waiting.is_finished());
        migrate(&keys[3..]);
        for node in [to, from, 3 - to - from] {
            nodes[node].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[to]]).unwrap();
        }
        waiting.join().unwrap()
    });
    assert_eq!(dequeued.deliveries.len(), 15);
    ack(&mut runner, &queue, &dequeued);
    assert_eq!(runner.run(queue.stats()).unwrap().leased, 5);
}

#[test]
fn cluster_with_tls() {
    let server = Server::options(Kind::Redis).tls().cluster().arg("--tls-cluster", "yes").start();
    let url = tls_url(&server).replace("localhost", "127.0.0.1");
    conforms(&mut Async::new(Redis::cluster([url]).unwrap()), "{files}");
}

#[test]
fn sentinel() {
    let master = Server::start(Kind::Redis);
    let sentinel = Sentinel::of(&master);
    conforms(&mut Async::new(Redis::sentinel([sentinel.url()], Sentinel::MASTER).unwrap()), "async");
    let master = || SentinelServerType::Master;
    let client = || SentinelClient::build(vec![sentinel.url()], Sentinel::MASTER, None, master()).unwrap();
    conforms(&mut Async::new(Redis::sentinel_with(client())), "client");
    conforms(&mut Blocking::new(client().get_connection().unwrap()), "blocking");
    let mut runner = Async::new(Redis::sentinel([sentinel.url()], "unknown").unwrap());
    runner.1 = runner.1.time_limit(Duration::from_millis(300));
    let error = runner.run(queue("q").stats()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("Master with given name not found"), "{error}");
}

#[test]
fn a_connection_of_the_callers() {
    let client = redis::Client::open(Server::shared(Kind::Redis).url()).unwrap();
    let mut runner = Async::new(Redis::connect_with(client.clone()));
    let connection = runner.0.block_on(client.get_multiplexed_async_connection()).unwrap();
    runner.1 = Redis::from_connection(connection);
    conforms(&mut runner, "runners-given");
}

#[test]
fn clones_share_one_connection() {
    let server = Server::start(Kind::Redis);
    let runner = Async::new(Redis::connect(&server.url()).unwrap());
    runner.0.block_on(async {
        let queue = queue("q");
        let one = |queue: Queue, redis: Redis| async move { redis.run(queue.enqueue("alice", tasks(1)).unwrap()).await };
        let all: Vec<_> = (0..100).map(|_| tokio::spawn(one(queue.clone(), runner.1.clone()))).collect();
        for enqueued in all {
            enqueued.await.unwrap().unwrap();
        }
        assert_eq!(runner.1.run(queue.stats()).await.unwrap().queued, 100);
    });
    let clients = server.command(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
    assert_eq!(clients.matches("cmd=evalsha").count() + clients.matches("cmd=eval ").count(), 1, "{clients}");
}

#[test]
fn a_runner_outlives_its_runtime() {
    let mut runner = Async::new(Redis::connect(&Server::shared(Kind::Redis).url()).unwrap());
    let queue = queue("runners-runtimes");
    enqueue(&mut runner, &queue, 1);
    let mut runner = Async::new(runner.1);
    assert_eq!(dequeue(&mut runner, &queue, 2).deliveries.len(), 1);
}

#[test]
fn a_node_of_a_cluster_is_no_single_server() {
    let server = Server::options(Kind::Redis).cluster().start();
    server.command(&["CLUSTER", "DELSLOTSRANGE", "0", "16383"]).unwrap();
    let mut runner = Async::new(Redis::connect(&server.url()).unwrap().time_limit(Duration::from_millis(100)));
    let error = runner.run(queue("{q}").stats()).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("CLUSTERDOWN"), "{}", chain(&error));
}
