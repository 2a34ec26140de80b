//! What a manager is called.

use crate::text;

/// As many bytes of a user agent make a name, and as many a client may give.
pub const MAX_NAME: usize = 128;

/// The name of a request's manager: the one that it gives, or what its user agent says up to the first slash, as far as it
/// can be printed (apiserver, `managerOrUserAgent` in `endpoints/handlers/create.go`).
pub fn manager_name(field_manager: &str, user_agent: &str) -> String {
    if !field_manager.is_empty() {
        return field_manager.to_owned();
    }
    let mut name = String::new();
    let agent = user_agent.split('/').next().unwrap_or_default();
    for c in agent.chars().filter(|c| text::printable(*c)) {
        if name.len() + c.len_utf8() > MAX_NAME {
            break;
        }
        name.push(c);
    }
    name
}
