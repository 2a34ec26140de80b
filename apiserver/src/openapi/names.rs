//! The names of definitions and operations (k8s.io/apiserver `pkg/endpoints/openapi/openapi.go`,
//! k8s.io/kube-openapi `pkg/util`).

/// The name of a definition, for example `info.programming-kubernetes.restaurant.v1beta1.Pizza`: the group's labels in
/// reverse, the version, the type.
///
/// There is never a slash in it. A slash would be escaped in references, which some readers do not undo.
pub(super) fn definition(group: &str, version: &str, name: &str) -> String {
    let labels: Vec<_> = group.rsplit('.').chain([version]).collect();
    let name = name.replace(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')), "_");
    format!("{}.{name}", labels.join("."))
}

/// What stands between the verb of an operation and the rest: where it is served.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// `/apis/`, `/version/`
    Root(&'a str),
    /// `/apis/<group>/`
    Group(&'a str),
    /// `/apis/<group>/<version>/…`
    GroupVersion(&'a str, &'a str),
}

impl Place<'_> {
    /// The operation's id, which is unique in the document.
    pub(super) fn operation_id(self, verb: &str, rest: &str) -> String {
        let place = match self {
            Place::Root(_) => String::new(),
            Place::Group(group) => identifier(trimmed(group), true),
            Place::GroupVersion(group, version) => identifier(trimmed(group), true) + &identifier(version, true),
        };
        format!("{verb}{place}{}", identifier(rest, true))
    }

    /// The tag under which documentation lists the operation.
    pub(super) fn tag(self) -> String {
        match self {
            Place::Root(name) => identifier(name, false),
            Place::Group(group) => identifier(trimmed(group), false),
            Place::GroupVersion(group, version) => {
                format!("{}_{}", identifier(trimmed(group), false), identifier(version, false))
            }
        }
    }
}

fn trimmed(group: &str) -> &str {
    group.strip_suffix(".k8s.io").unwrap_or(group)
}

/// Makes one word of a text, in camel case. Digits do not begin it.
fn identifier(text: &str, capitalise: bool) -> String {
    let mut word = String::with_capacity(text.len());
    let mut capitalise = capitalise;
    for (index, c) in text.char_indices() {
        if c.is_alphabetic() || c == '_' || (index != 0 && c.is_numeric()) {
            if capitalise {
                word.extend(c.to_uppercase());
                capitalise = false;
            } else {
                word.push(c);
            }
        } else {
            capitalise = true;
        }
    }
    word
}

/// The first letter in upper case, the others in lower case.
pub(super) fn title(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(chars.flat_map(char::to_lowercase)).collect())
}

/// A noun with its article, as descriptions have it.
pub(super) fn with_article(noun: &str) -> String {
    if noun.ends_with('s') && !noun.ends_with("ss") {
        noun.to_owned()
    } else if noun.starts_with(['a', 'e', 'i', 'o', 'u', 'A', 'E', 'I', 'O', 'U']) {
        format!("an {noun}")
    } else {
        format!("a {noun}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_named_in_reverse() {
        let name = definition("restaurant.programming-kubernetes.info", "v1beta1", "Pizza");
        assert_eq!(name, "info.programming-kubernetes.restaurant.v1beta1.Pizza");
        assert_eq!(definition("g", "v1", "a/b<c>"), "g.v1.a_b_c_");
    }

    #[test]
    fn operations_are_named_as_in_the_original() {
        let place = Place::GroupVersion("wardle.example.com", "v1alpha1");
        assert_eq!(place.operation_id("list", "NamespacedFlunder"), "listWardleExampleComV1alpha1NamespacedFlunder");
        assert_eq!(place.tag(), "wardleExampleCom_v1alpha1");
        let place = Place::GroupVersion("apiregistration.k8s.io", "v1");
        assert_eq!(place.operation_id("read", "APIServiceStatus"), "readApiregistrationV1APIServiceStatus");
        assert_eq!(Place::Root("apis").operation_id("get", "APIVersions"), "getAPIVersions");
        assert_eq!(Place::Group("wardle.example.com").tag(), "wardleExampleCom");
    }

    #[test]
    fn nouns_have_their_articles() {
        assert_eq!(
            ["Pizza", "Oven", "Class", "Toppings"].map(with_article),
            ["a Pizza", "an Oven", "a Class", "Toppings"]
        );
    }
}
