//! The Rust worker, on every runner: each test takes one and uses a queue of its own.

mod arguments;
mod bed;
mod endings;
mod failures;
mod health;
mod leases;
mod retries;

use std::sync::Arc;

use vtrr_queue::{Memory, Redis};

use crate::server::{Kind, Server};

/// Every test on every runner.
macro_rules! on_every_runner {
    ($($module:ident: $($test:ident)*;)*) => {
        mod memory {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$module::$test(super::Arc::new(super::Memory::new())).await;
            })*)*
        }

        mod redis {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$module::$test(super::Redis::connect(&super::Server::shared(super::Kind::Redis).url()).unwrap()).await;
            })*)*
        }
    };
}

on_every_runner! {
    arguments:
        arguments_arrive_typed
        what_goes_in_comes_out
        arguments_that_do_not_fit_are_a_dead_letter_at_once
        an_unreadable_payload_is_a_dead_letter_and_the_next_task_runs;
    retries:
        an_error_is_final_unless_told_otherwise
        an_error_is_retried_until_a_dead_letter
        a_handler_retries_with_other_arguments
        the_rest_of_the_body_stays_as_it_was
        a_panic_is_a_failed_delivery
        a_panic_is_retried_where_errors_are
        hooks_are_told;
    failures:
        an_error_is_retried_however_it_comes
        an_error_is_picked_by_the_handlers_own_type
        a_retry_is_heard_however_it_comes;
    endings:
        concurrency_is_reached_and_never_exceeded
        a_soft_limit_is_seen_by_the_handler
        a_time_limit_drops_the_handler
        a_stopping_worker_lets_handlers_end
        a_stopping_worker_releases_what_still_runs_without_blame
        an_unknown_task_waits_for_a_worker_that_knows_it
        a_task_that_nobody_knows_is_a_dead_letter_in_the_end
        five_thousand_tasks_are_done_once_each;
    leases:
        leases_are_extended_while_handlers_run
        a_lost_lease_drops_the_handler
        a_poisonous_task_is_a_dead_letter_and_others_run
        a_task_of_a_dead_worker_is_delivered_again
        an_idle_worker_costs_a_few_commands_per_second
        an_idle_worker_is_woken;
}

#[test]
fn settings_out_of_range_are_refused() {
    use std::time::Duration;
    use vtrr_queue::{Context, Queue, Worker};

    async fn nothing(_: Context, (): ()) -> Result<(), std::io::Error> {
        Ok(())
    }
    let builder = || Worker::builder(Queue::new("q").unwrap(), Memory::new()).register("t", nothing);
    assert!(builder().build().is_ok());
    for (built, words) in [
        (builder().concurrency(0).build(), "concurrency must be at least 1, not 0"),
        (builder().lease(Duration::ZERO).build(), "lease"),
        (builder().max_deliveries(0).build(), "max_deliveries"),
        (builder().poll(Duration::ZERO).build(), "poll must be at least 1 ms"),
        (builder().sweep_interval(Duration::ZERO).build(), "sweep_interval"),
        (builder().register("t", nothing).build(), "task_name must be registered once, not \"t\" a second time"),
    ] {
        let error = built.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
