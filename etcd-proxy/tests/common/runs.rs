//! Random cases: a short run of fixed seeds in the default tests, a long one by minutes, any case again by its seed, and what
//! fails made small.
//!
//! | variable | |
//! |---|---|
//! | `TEST_SEED` | run this one case |
//! | `TEST_MINUTES` | run for so long, from seeds of the clock |
//! | `TEST_BRIEF` | say what is wrong with the first case that fails, and make nothing smaller |

use std::{
    env,
    fmt::Debug,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

/// Time that making a failed case smaller may take.
const SHRINKING: Duration = Duration::from_secs(60);
/// How often a long run says how far it is.
const PROGRESS: Duration = Duration::from_secs(30);

/// A named set of random cases.
pub(crate) struct Runs {
    /// Its name, with the path by which cargo finds the test.
    pub(crate) name: &'static str,
    /// Cases of the short run.
    pub(crate) cases: u64,
}

/// What is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    One(u64),
    Short(u64),
    Long { first: u64, time: Duration },
}

// === impl Runs ===

impl Runs {
    /// Runs cases that `strategy` makes; `check` says what is wrong with one.
    ///
    /// # Panics
    /// With the seed, the smallest case found and what is wrong with it, when there is something.
    #[expect(clippy::print_stderr, reason = "says what was run, and how far a long run is")]
    pub(crate) fn run<S: Strategy>(&self, strategy: &S, mut check: impl FnMut(&S::Value) -> Result<(), String>)
    where
        S::Value: Debug,
    {
        let plan = self.plan();
        let start = Instant::now();
        let mut told = start;
        let mut ran = 0;
        loop {
            let seed = match plan {
                Plan::One(seed) if ran == 0 => seed,
                Plan::Short(cases) if ran < cases => ran + 1,
                Plan::Long { first, time } if start.elapsed() < time => first.wrapping_add(ran),
                _ => break,
            };
            let mut case = tree(strategy, seed);
            if let Err(wrong) = check(&case.current()) {
                assert!(env::var_os("TEST_BRIEF").is_none(), "{}: seed {seed}, case {}: {wrong}", self.name, ran + 1);
                let (smallest, wrong) = shrink(&mut case, wrong, &mut check);
                panic!(
                    "smallest case found: {smallest:#?}\n{}: seed {seed}, case {}: {wrong}\nagain: TEST_SEED={seed} cargo test -p etcd-proxy {}",
                    self.name,
                    ran + 1,
                    self.name,
                );
            }
            ran += 1;
            if told.elapsed() > PROGRESS {
                told = Instant::now();
                eprintln!("{}: {ran} cases in {} s", self.name, start.elapsed().as_secs());
            }
        }
        eprintln!("{}: {plan:?}: {ran} cases in {} s, nothing found", self.name, start.elapsed().as_secs());
    }

    fn plan(&self) -> Plan {
        let number = |name: &str| {
            let text = env::var(name).ok()?;
            Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is no number")))
        };
        match (number("TEST_SEED"), number("TEST_MINUTES")) {
            (Some(seed), _) => Plan::One(seed),
            (None, Some(minutes)) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                Plan::Long { first: now << 24, time: Duration::from_secs(minutes * 60) }
            }
            (None, None) => Plan::Short(self.cases),
        }
    }
}

/// The case of a seed.
fn tree<S: Strategy>(strategy: &S, seed: u64) -> S::Tree {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
    strategy.new_tree(&mut runner).unwrap()
}

/// Runs smaller cases again and again; returns the smallest that fails, with what is wrong with it.
fn shrink<T: ValueTree>(
    case: &mut T,
    wrong: String,
    check: &mut impl FnMut(&T::Value) -> Result<(), String>,
) -> (T::Value, String) {
    let start = Instant::now();
    let mut smallest = (case.current(), wrong);
    let mut more = case.simplify();
    while more && start.elapsed() < SHRINKING {
        let current = case.current();
        more = match check(&current) {
            Err(wrong) => {
                smallest = (current, wrong);
                case.simplify()
            }
            Ok(()) => case.complicate(),
        };
    }
    smallest
}
