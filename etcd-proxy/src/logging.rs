//! What is logged, where to and in which form.

mod backlog;

use std::{
    error::Error,
    fmt,
    io::{self, IsTerminal as _},
};

use serde::Serialize;
use tonic::Status;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{
    Layer,
    field::{RecordFields, VisitOutput as _},
    filter::Targets,
    fmt::{
        FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::{DefaultVisitor, Writer},
        time::{FormatTime as _, SystemTime},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

pub use self::backlog::Backlog;
use crate::{
    cli::{LogArgs, LogFormat, LogLevel},
    metrics::code_name,
};

/// What lines of the access log are logged under. They are written when they are asked for, whatever the level.
pub const ACCESS: &str = "etcd_proxy::access";

/// Messages go to `out`, which leads to standard error, from now on.
pub fn init(args: &LogArgs, out: impl for<'a> MakeWriter<'a> + Send + Sync + 'static) {
    let level = match args.log_level {
        _ if args.debug => LevelFilter::DEBUG,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error | LogLevel::Panic | LogLevel::Fatal => LevelFilter::ERROR,
    };
    // The libraries' debug messages are single HTTP/2 frames.
    let targets = Targets::new()
        .with_default(level.min(LevelFilter::INFO))
        .with_target("etcd_proxy", level)
        .with_target(ACCESS, level.max(LevelFilter::INFO));
    let layer = tracing_subscriber::fmt::layer().with_ansi(io::stderr().is_terminal()).with_writer(out);
    let layer = match args.log_format {
        LogFormat::Json => layer.event_format(JsonLines).boxed(),
        LogFormat::Console => layer.fmt_fields(ConsoleFields).boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(targets)).init();
}

/// One JSON object a line: time, level, the message's fields, target. Of an error all that it came of is said, too, which
/// tracing-subscriber's own JSON leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonLines;

/// A line in the making.
struct Line {
    json: Vec<u8>,
    /// What the `log` crate's messages are logged under.
    target: Option<String>,
}

/// Lines for people, in which errors read as in [`JsonLines`].
#[derive(Clone, Copy, Debug, Default)]
struct ConsoleFields;

/// tracing-subscriber's own form of the fields.
struct Fields<'a>(DefaultVisitor<'a>);

/// What there is to say of an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Said(String);

/// An error with those that it came of, each said once: a status as grpc-go prints it, and where to read on about a library,
/// which is of no use to an operator, left out.
pub fn reason(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = Some(error);
    while let Some(cause) = next {
        let more = cause.to_string();
        let better = cause.downcast_ref::<Status>().map(grpc_form);
        match better {
            // Those that it led to may have said it already.
            Some(better) if text.contains(&more) => text = text.replace(&more, &better),
            Some(better) if !text.contains(&better) => text = format!("{text}: {better}"),
            None if !text.contains(&more) => text = format!("{text}: {more}"),
            _ => {}
        }
        next = cause.source();
    }
    without_links(text)
}

fn grpc_form(status: &Status) -> String {
    format!("rpc error: code = {} desc = {}", code_name(status.code()), status.message())
}

/// rustls ends some messages with the address of its manual.
fn without_links(mut text: String) -> String {
    const LINK: &str = ": https://docs.rs/";
    while let Some(start) = text.find(LINK) {
        let rest = text.get(start + LINK.len()..).unwrap_or_default();
        // Up to the next word, or the next cause.
        let length = rest.find([' ', '\n', '"']).unwrap_or(rest.len());
        let mut end = start + LINK.len() + length;
        if text.get(..end).is_some_and(|link| link.ends_with(':')) {
            end -= 1;
        }
        text.replace_range(start..end, "");
    }
    text
}

// === impl JsonLines ===

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut line = Line { json: Vec::with_capacity(256), target: None };
        line.add("timestamp", &time);
        line.add("level", event.metadata().level().as_str());
        event.record(&mut line);
        let target = line.target.take();
        line.add("target", target.as_deref().unwrap_or(event.metadata().target()));
        line.json.extend_from_slice(b"}\n");
        writer.write_str(std::str::from_utf8(&line.json).map_err(|_| fmt::Error)?)
    }
}

// === impl ConsoleFields, Fields ===

impl<'a> FormatFields<'a> for ConsoleFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'a>, fields: R) -> fmt::Result {
        let mut visitor = Fields(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.record_str(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        // As an error, of which it leaves out what a terminal would obey.
        self.0.record_error(field, &Said(reason(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.record_debug(field, value);
    }
}

// === impl Line ===

impl Line {
    fn add(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        self.json.push(if self.json.is_empty() { b'{' } else { b',' });
        let before = self.json.len();
        let mut written = serde_json::to_writer(&mut self.json, name.trim_start_matches("r#"));
        self.json.push(b':');
        written = written.and_then(|()| serde_json::to_writer(&mut self.json, value));
        if written.is_err() {
            // Numbers that JSON does not have.
            self.json.truncate(before);
            self.json.extend_from_slice(b"\"unprintable\":true");
        }
    }
}

impl Visit for Line {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field.name(), &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field.name(), &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field.name(), &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field.name(), &value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "log.target" => self.target = Some(value.to_owned()),
            "log.module_path" | "log.file" => {}
            name => self.add(name, value),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.add(field.name(), &reason(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Memory {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    fn logged(log: impl FnOnce()) -> serde_json::Value {
        let memory = Memory::default();
        let layer = tracing_subscriber::fmt::layer().with_writer(memory.clone()).event_format(JsonLines);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let text = String::from_utf8(memory.0.lock().clone()).unwrap();
        assert!(text.ends_with("}\n") && text.lines().count() == 1, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the shop")]
    struct Shop(#[source] Door);

    #[derive(Debug, thiserror::Error)]
    #[error("the door is locked: {0}")]
    struct Door(#[source] io::Error);

    #[test]
    fn errors_are_logged_with_what_they_came_of() {
        let error = Shop(Door(io::Error::other("no \"key\"")));
        let line = logged(|| tracing::warn!(error = &error as &dyn Error, "closed"));
        assert_eq!(line["error"], "cannot open the shop: the door is locked: no \"key\"");
        assert_eq!(line["message"], "closed");
    }

    #[test]
    fn a_status_is_said_as_grpc_says_it_in_both_forms() {
        let status = Status::unavailable("not \"yet\"");
        let said = r#"rpc error: code = Unavailable desc = not "yet""#;
        let line = logged(|| tracing::warn!(error = &status as &dyn Error, "m"));
        assert_eq!(line["error"], said);
        let memory = Memory::default();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(memory.clone())
            .with_ansi(false)
            .without_time()
            .fmt_fields(ConsoleFields);
        let log = || tracing::warn!(target: "t", error = &status as &dyn Error, n = 1, "words");
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let text = String::from_utf8(memory.0.lock().clone()).unwrap();
        assert_eq!(text, format!(" WARN t: words error={said} n=1\n"));

        #[derive(Debug, thiserror::Error)]
        #[error("no claims: {0}")]
        struct Claims(#[source] Status);
        assert_eq!(reason(&Claims(status)), format!("no claims: {said}"));
    }

    #[test]
    fn manuals_of_libraries_are_not_named() {
        let eof = "closed without close_notify: https://docs.rs/rustls/latest/rustls/manual/_03_howto/index.html#unexpected-eof";
        assert_eq!(reason(&io::Error::other(eof)), "closed without close_notify");
        assert_eq!(without_links(format!("a: {eof}: b")), "a: closed without close_notify: b");
        assert_eq!(without_links("see https://docs.rs/".to_owned()), "see https://docs.rs/");
    }

    #[test]
    fn fields_keep_their_types() {
        let line =
            logged(|| tracing::info!(target: "t", n = 1, f = 0.5, nan = f64::NAN, b = true, r#type = "x\n", "m"));
        let parts = ["level", "n", "f", "b", "type", "target"].map(|name| line[name].to_string());
        assert_eq!(parts, [r#""INFO""#, "1", "0.5", "true", r#""x\n""#, r#""t""#]);
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
    }
}
