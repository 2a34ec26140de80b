use std::time::Duration;

use super::*;
use crate::{
    events::{Asked, Response, Without},
    history::{Answer, Kv, Register, Request, Revision},
};

const ALL: Asked = Asked { prefix: "", start: 2, without: None, before: true };

fn kv(value: u64, version: i64, created: Revision, modified: Revision) -> Option<Kv> {
    Some(Kv { value, version, created, modified })
}

fn event(revision: Revision, key: &str, put: Option<Kv>, before: Option<Kv>) -> Event {
    Event { revision, key: key.to_owned(), put, before }
}

/// `a` is put, put again and deleted; then `a` and `b` are put at once.
fn events() -> Vec<Event> {
    vec![
        event(2, "a", kv(1, 1, 2, 2), None),
        event(3, "a", kv(2, 2, 2, 3), kv(1, 1, 2, 2)),
        event(5, "a", None, kv(2, 2, 2, 3)),
        event(6, "a", kv(3, 1, 6, 6), None),
        event(6, "b", kv(3, 1, 6, 6), None),
    ]
}

fn told(events: &[Event]) -> Response {
    Response { at: Duration::ZERO, revision: events.last().unwrap().revision, events: events.to_vec() }
}

fn progress(revision: Revision) -> Response {
    Response { at: Duration::ZERO, revision, events: Vec::new() }
}

fn judge(asked: Asked, responses: Vec<Response>) -> Result<(), String> {
    watch(&Watch { asked, responses }, &Truth::new(events()).unwrap())
}

fn wrong(name: &str, asked: Asked, responses: Vec<Response>) {
    let found = judge(asked, responses).expect_err("there is something wrong");
    assert!(found.starts_with(&format!("watch, {name}:")), "{found}");
}

#[test]
fn what_is_right_is_found_right() {
    let all = events();
    judge(ALL, vec![told(&all)]).unwrap();
    judge(ALL, vec![told(&all[..1]), progress(2), told(&all[1..3]), progress(5), told(&all[3..]), progress(9)])
        .unwrap();
    judge(ALL, Vec::new()).unwrap();
    judge(Asked { start: 0, ..ALL }, vec![told(&all[2..])]).unwrap();
    judge(Asked { start: 0, ..ALL }, vec![progress(3), told(&all[2..])]).unwrap();
    judge(Asked { prefix: "b", ..ALL }, vec![progress(5), told(&all[4..])]).unwrap();
    judge(Asked { without: Some(Without::Puts), ..ALL }, vec![told(&all[2..3])]).unwrap();
    let bare = all.iter().map(|event| Event { before: None, ..event.clone() });
    judge(Asked { before: false, ..ALL }, vec![told(&bare.collect::<Vec<_>>())]).unwrap();
}

#[test]
fn what_was_not_asked_for_is_found() {
    let all = events();
    wrong("filter", Asked { prefix: "b", ..ALL }, vec![told(&all[3..])]);
    wrong("filter", Asked { without: Some(Without::Deletes), ..ALL }, vec![told(&all)]);
    wrong("filter", Asked { without: Some(Without::Puts), ..ALL }, vec![told(&all)]);
}

#[test]
fn events_out_of_order_are_found() {
    let all = events();
    wrong("ordered", ALL, vec![told(&all[1..2]), told(&all[..1])]);
}

#[test]
fn an_event_that_comes_twice_is_found() {
    let mut all = events();
    all.insert(1, all[0].clone());
    wrong("unique", ALL, vec![told(&all)]);
}

#[test]
fn a_revision_in_two_responses_is_found() {
    let all = events();
    wrong("atomic", ALL, vec![told(&all[..4]), told(&all[4..])]);
    wrong("atomic", ALL, vec![told(&all[..4]), progress(5), told(&all[4..])]);
}

#[test]
fn word_of_progress_that_is_not_true_is_found() {
    let all = events();
    wrong("bookmarkable", ALL, vec![told(&all[..1]), progress(3), told(&all[1..])]);
    wrong("bookmarkable", ALL, vec![told(&all), progress(5)]);
    wrong("bookmarkable", ALL, vec![told(&all), progress(9), progress(8)]);
}

#[test]
fn what_is_missing_where_a_watch_goes_on_is_found() {
    let all = events();
    wrong("resumable", ALL, vec![told(&all[1..])]);
    wrong("resumable", Asked { start: 4, ..ALL }, vec![told(&all[3..])]);
}

#[test]
fn a_creation_that_was_none_is_found() {
    let mut all = events();
    all[1].put = kv(2, 1, 3, 3);
    wrong("isCreate", ALL, vec![told(&all)]);
    let mut all = events();
    all[3].put = kv(3, 3, 2, 6);
    wrong("isCreate", ALL, vec![told(&all)]);
}

#[test]
fn what_is_missing_in_between_is_found() {
    let mut all = events();
    all.remove(1);
    wrong("reliable", ALL, vec![told(&all)]);
    // Passed over by word of progress, too, even with no event at all.
    wrong("reliable", ALL, vec![told(&events()[..1]), progress(4)]);
    wrong("reliable", ALL, vec![progress(4)]);
    wrong("reliable", Asked { start: 0, ..ALL }, vec![progress(2), told(&events()[2..])]);
}

#[test]
fn what_is_invented_is_found() {
    let mut all = events();
    all[1].put = kv(7, 2, 2, 3);
    wrong("reliable", ALL, vec![told(&all)]);
    let mut all = events();
    all.insert(2, event(4, "b", None, None));
    wrong("reliable", ALL, vec![told(&all)]);
}

#[test]
fn a_wrong_state_before_is_found() {
    let mut all = events();
    all[2].before = kv(1, 1, 2, 2);
    wrong("prevKV", ALL, vec![told(&all)]);
    all[2].before = None;
    wrong("prevKV", ALL, vec![told(&all)]);
    wrong("prevKV", Asked { before: false, ..ALL }, vec![told(&events())]);
}

#[test]
fn a_history_that_is_none_is_found() {
    let mut all = events();
    all.remove(1);
    Truth::new(all).unwrap_err();
    let mut all = events();
    all[4].revision = 1;
    Truth::new(all).unwrap_err();
}

#[test]
fn a_write_that_is_not_in_the_history_is_found() {
    let register = Register(0);
    let put = |value, revision| {
        let answer = Answer { revision, before: None, wrote: true };
        let answered = Some((Duration::ZERO, answer));
        Operation { client: 0, register, request: Request::Put(value), called: Duration::ZERO, answered }
    };
    let key = register.to_string();
    let truth = Truth::new(vec![event(2, &key, kv(1, 1, 2, 2), None)]).unwrap();
    writes(&[put(1, 2)], &truth).unwrap();
    writes(&[put(1, 3)], &truth).unwrap_err();
    writes(&[put(2, 2)], &truth).unwrap_err();
    let twice = [event(2, &key, kv(1, 1, 2, 2), None), event(4, &key, kv(1, 2, 2, 4), kv(1, 1, 2, 2))];
    writes(&[put(1, 2)], &Truth::new(twice.to_vec()).unwrap()).unwrap_err();
}
