use std::time::Duration;

use super::*;
use crate::history::Answer;

const REGISTER: Register = Register(0);

fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A call from one instant to another that was answered.
fn told(from: u64, to: u64, request: Request, revision: Revision, before: Option<Kv>) -> Operation {
    let answer = Answer { revision, before, wrote: writes(&request, before) };
    Operation { client: 0, register: REGISTER, request, called: at(from), answered: Some((at(to), answer)) }
}

/// A call that was never answered.
fn untold(from: u64, request: Request) -> Operation {
    Operation { client: 0, register: REGISTER, request, called: at(from), answered: None }
}

fn kv(value: u64, version: i64, created: Revision, modified: Revision) -> Option<Kv> {
    Some(Kv { value, version, created, modified })
}

fn judge(operations: &[Operation]) -> Result<(), String> {
    check(operations, Instant::now() + Duration::from_secs(60))
}

fn right(operations: &[Operation]) {
    judge(operations).unwrap();
}

fn wrong(operations: &[Operation], why: &str) {
    let found = judge(operations).expect_err("there is something wrong");
    assert!(found.contains(why), "{found}");
}

#[test]
fn one_after_the_other() {
    right(&[
        told(0, 1, Request::Get, 1, None),
        told(2, 3, Request::Put(7), 2, None),
        told(4, 5, Request::Get, 4, kv(7, 1, 2, 2)),
        told(6, 7, Request::Put(8), 5, kv(7, 1, 2, 2)),
        told(8, 9, Request::Delete, 6, kv(8, 2, 2, 5)),
        told(10, 11, Request::Delete, 6, None),
        told(12, 13, Request::Get, 6, None),
    ]);
}

#[test]
fn calls_that_overlap_come_in_either_order() {
    let read = |found| [told(0, 10, Request::Put(7), 2, None), told(5, 15, Request::Get, 2, found)];
    right(&read(kv(7, 1, 2, 2)));
    let [put, get] = read(None);
    right(&[put, Operation { answered: Some((at(15), Answer { revision: 1, before: None, wrote: false })), ..get }]);
}

#[test]
fn a_read_of_what_was_before_is_found() {
    wrong(&[told(0, 1, Request::Put(7), 2, None), told(2, 3, Request::Get, 2, None)], "no order explains");
}

#[test]
fn a_lost_write_is_found() {
    wrong(
        &[told(0, 1, Request::Put(7), 2, None), told(2, 3, Request::Put(8), 3, None)],
        "no order explains all answers; 1 of 2",
    );
}

#[test]
fn an_invented_value_is_found() {
    wrong(&[told(0, 1, Request::Get, 2, kv(9, 1, 2, 2))], "no order explains");
}

#[test]
fn a_write_that_was_carried_out_twice_is_found() {
    wrong(
        &[told(0, 1, Request::Put(7), 2, None), told(2, 3, Request::Put(8), 5, kv(7, 2, 2, 4))],
        "value 7 was written twice",
    );
}

/// The first time by a call that was given up, or that another attempt repeated.
#[test]
fn a_write_whose_first_time_was_overwritten_is_found() {
    wrong(
        &[
            untold(0, Request::Put(7)),
            told(1, 2, Request::Get, 2, kv(7, 1, 2, 2)),
            told(3, 4, Request::Put(8), 3, kv(7, 1, 2, 2)),
            told(5, 6, Request::Get, 4, kv(7, 3, 2, 4)),
        ],
        "value 7 was written twice",
    );
}

#[test]
fn what_was_not_answered_may_have_happened() {
    let put = untold(0, Request::Put(7));
    right(&[put, told(2, 3, Request::Get, 2, kv(7, 1, 2, 2))]);
    right(&[put, told(2, 3, Request::Get, 1, None)]);
    // Later, too.
    right(&[put, told(2, 3, Request::Get, 1, None), told(4, 5, Request::Get, 2, kv(7, 1, 2, 2))]);
    // But not before it was asked for, and once only.
    let early = told(0, 1, Request::Get, 2, kv(7, 1, 2, 2));
    wrong(&[Operation { called: at(2), ..put }, early], "no order explains");
    wrong(
        &[
            put,
            told(2, 3, Request::Get, 2, kv(7, 1, 2, 2)),
            told(4, 5, Request::Put(8), 3, kv(7, 1, 2, 2)),
            told(6, 7, Request::Get, 3, kv(7, 1, 2, 2)),
        ],
        "no order explains",
    );
}

#[test]
fn a_delete_without_an_answer_explains_an_absence() {
    let put = told(0, 1, Request::Put(7), 2, None);
    let gone = told(4, 5, Request::Get, 3, None);
    right(&[put, untold(2, Request::Delete), gone]);
    wrong(&[put, gone], "no order explains");
    // One explains one.
    let again = [told(6, 7, Request::Put(8), 4, None), told(8, 9, Request::Get, 5, None)];
    wrong(&[put, untold(2, Request::Delete), gone, again[0], again[1]], "no order explains");
}

#[test]
fn a_swap_happens_only_to_what_it_expects() {
    let put = told(0, 1, Request::Put(7), 2, None);
    let swap = |expected| Request::Swap { expected, value: 8 };
    right(&[put, told(2, 3, swap(kv(7, 1, 2, 2)), 3, kv(7, 1, 2, 2))]);
    right(&[put, told(2, 3, swap(None), 2, kv(7, 1, 2, 2))]);
    // Said not to have happened although it had to.
    let refused = Answer { revision: 2, before: kv(7, 1, 2, 2), wrote: false };
    let swapped = told(2, 3, swap(kv(7, 1, 2, 2)), 3, kv(7, 1, 2, 2));
    wrong(&[put, Operation { answered: Some((at(3), refused)), ..swapped }], "no order explains");
    // Both of two that expect the same.
    let other = Request::Swap { expected: kv(7, 1, 2, 2), value: 9 };
    wrong(
        &[put, told(2, 5, swap(kv(7, 1, 2, 2)), 3, kv(7, 1, 2, 2)), told(3, 6, other, 4, kv(7, 1, 2, 2))],
        "no order explains",
    );
}

#[test]
fn revisions_do_not_run_backwards() {
    wrong(&[told(0, 1, Request::Get, 5, None), told(2, 3, Request::Get, 4, None)], "no order explains");
    wrong(&[told(0, 1, Request::Get, 5, None), told(2, 3, Request::Put(7), 5, None)], "no order explains");
}

#[test]
fn registers_are_apart() {
    let put = told(0, 1, Request::Put(7), 2, None);
    right(&[put, Operation { register: Register(1), ..told(2, 3, Request::Get, 2, None) }]);
    wrong(&[put, Operation { register: Register(1), ..told(2, 3, Request::Get, 2, kv(7, 1, 2, 2)) }], "register/1");
}

/// Many clients at once, and many calls without an answer: what is right is found to be, in time.
#[test]
fn long_histories_are_judged_quickly() {
    let mut operations = Vec::new();
    let mut state = None;
    for number in 0..4000u64 {
        let revision = 2 + i64::try_from(number).unwrap();
        let time = 10 * number;
        let value = 1000 + number;
        // Each write takes effect at `time`, in a call that overlaps some twenty others.
        operations.push(match number % 40 {
            0 => untold(time.saturating_sub(100), Request::Put(value)),
            1 => untold(time.saturating_sub(100), Request::Delete),
            _ => told(time.saturating_sub(100), time + 100, Request::Put(value), revision, state),
        });
        state = if number % 40 == 1 { None } else { Some(Kv::put(state, value, revision)) };
        // Nobody knows of these whether they happened: they did not.
        if number % 40 == 5 {
            operations.push(untold(time, Request::Put(1_000_000 + number)));
            operations.push(untold(time, Request::Delete));
        }
    }
    right(&operations);
    // One answer wrong, in the middle.
    let place = operations.iter().position(|operation| operation.request == Request::Put(3010)).unwrap();
    let Some((_, answer)) = &mut operations[place].answered else { panic!("answered") };
    answer.before = None;
    judge(&operations).unwrap_err();
}

#[test]
fn a_search_that_takes_too_long_is_no_success() {
    let reads = (0..40_000u64).map(|number| told(number, number + 50_000, Request::Get, 1, None));
    let late = check(&reads.collect::<Vec<_>>(), Instant::now());
    assert!(late.unwrap_err().contains("in time"));
}
