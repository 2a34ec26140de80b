//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Calls `probe` until it succeeds, first at once, then at growing distances of up to a quarter of a second.
///
/// # Errors
/// When `limit` has passed: what was waited for and the probe's last error. An error made by [`give_up`] ends the
/// wait at once.
pub fn until<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(5);
    loop {
        let error = match probe() {
            Ok(value) => return Ok(value),
            Err(error) if error.is::<GiveUp>() => return Err(error.context(format!("while waiting for {what}"))),
            Err(error) => error,
        };
        if Instant::now() + pause > deadline {
            return Err(error.context(format!("{what}: not within {} s", limit.as_secs())));
        }
        rest(pause);
        pause = (pause * 2).min(Duration::from_millis(250));
    }
}

/// A probe's answer when more waiting cannot help, as when the process waited for has ended.
#[derive(Debug)]
pub struct GiveUp(String);

impl std::fmt::Display for GiveUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GiveUp {}

/// An error that ends [`until`] before its deadline.
pub fn give_up(why: impl Into<String>) -> anyhow::Error {
    anyhow!(GiveUp(why.into()))
}

/// Lets time pass between two looks at something that sends no word when it changes.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that waits without an event; its callers poll with a deadline"
)]
pub(crate) fn rest(pause: Duration) {
    std::thread::sleep(pause);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn succeeds_as_soon_as_the_probe_does() {
        let mut calls = 0;
        let value = until("three calls", Duration::from_secs(5), || {
            calls += 1;
            if calls == 3 { Ok(calls) } else { Err(anyhow!("only {calls}")) }
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn tells_what_was_waited_for_and_why_it_failed() {
        let error = until("the oven", Duration::from_millis(20), || Err::<(), _>(anyhow!("still cold"))).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("the oven") && text.contains("still cold"), "{text}");
    }

    #[test]
    fn gives_up_at_once_when_told() {
        let mut calls = 0;
        let error = until("the oven", Duration::from_secs(60), || {
            calls += 1;
            Err::<(), _>(give_up("no gas"))
        });
        assert_eq!(calls, 1);
        assert!(format!("{:#}", error.unwrap_err()).contains("no gas"));
    }
}
