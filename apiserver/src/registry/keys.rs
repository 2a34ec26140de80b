//! Where a resource's objects lie in the storage: `/<group>/<resource>/<namespace>/<name>`, without the namespace for
//! resources of the cluster (k8s.io/apiserver `pkg/registry/generic/registry/store.go`, `NamespaceKeyFunc`).

use crate::{
    meta::{GroupResource, Scope},
    quote::quote,
    status::Status,
};

/// The key space of one resource.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    root: String,
    scope: Scope,
}

// === impl Keys ===

impl Keys {
    /// The key space of this resource.
    pub(super) fn new(resource: &GroupResource, scope: Scope) -> Self {
        Self { root: format!("/{}/{}/", resource.group, resource.resource), scope }
    }

    /// The key of one object.
    ///
    /// # Errors
    /// 400 when the namespace is missing, or when a name cannot be a segment of a path.
    pub(super) fn object(&self, namespace: &str, name: &str) -> Result<String, Status> {
        let prefix = match self.scope {
            Scope::Cluster => self.root.clone(),
            Scope::Namespaced if namespace.is_empty() => {
                return Err(Status::bad_request("Namespace parameter required."));
            }
            Scope::Namespaced => self.collection(namespace)?,
        };
        if name.is_empty() {
            return Err(Status::bad_request("Name parameter required."));
        }
        check_segment("Name", name)?;
        Ok(prefix + name)
    }

    /// What the keys of one namespace's objects begin with, or of all objects when `namespace` is empty.
    ///
    /// # Errors
    /// 400 when the namespace cannot be a segment of a path.
    pub(super) fn collection(&self, namespace: &str) -> Result<String, Status> {
        match self.scope {
            Scope::Namespaced if !namespace.is_empty() => {
                check_segment("Namespace", namespace)?;
                Ok(format!("{}{namespace}/", self.root))
            }
            _ => Ok(self.root.clone()),
        }
    }

    /// The namespace, empty for resources of the cluster, and name of the object with this key. `None` for a key that is
    /// no object's.
    pub(super) fn parse(&self, key: &str) -> Option<(String, String)> {
        let path = key.strip_prefix(&self.root)?;
        let (namespace, name) = match self.scope {
            Scope::Namespaced => path.split_once('/').filter(|(namespace, _)| !namespace.is_empty())?,
            Scope::Cluster => ("", path),
        };
        (!name.is_empty() && !name.contains('/')).then(|| (namespace.to_owned(), name.to_owned()))
    }
}

fn check_segment(what: &str, segment: &str) -> Result<(), Status> {
    let problem = match segment {
        "." => "may not be '.'".to_owned(),
        ".." => "may not be '..'".to_owned(),
        _ => {
            let found: Vec<_> =
                ["/", "%"].iter().filter(|c| segment.contains(**c)).map(|c| format!("may not contain '{c}'")).collect();
            if found.is_empty() {
                return Ok(());
            }
            found.join(";")
        }
    };
    Err(Status::bad_request(format!("{what} parameter invalid: {}: {problem}", quote(segment))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pizzas(scope: Scope) -> Keys {
        Keys::new(&GroupResource { group: "example.com".to_owned(), resource: "pizzas".to_owned() }, scope)
    }

    #[test]
    fn objects_lie_below_their_collection() {
        let keys = pizzas(Scope::Namespaced);
        assert_eq!(keys.object("default", "a").unwrap(), "/example.com/pizzas/default/a");
        assert_eq!(keys.collection("default").unwrap(), "/example.com/pizzas/default/");
        assert_eq!(keys.collection("").unwrap(), "/example.com/pizzas/");
        assert_eq!(pizzas(Scope::Cluster).object("", "a").unwrap(), "/example.com/pizzas/a");
    }

    #[test]
    fn keys_say_whose_they_are() {
        let parsed = |scope, key| pizzas(scope).parse(key);
        let owner = |namespace: &str, name: &str| Some((namespace.to_owned(), name.to_owned()));
        assert_eq!(parsed(Scope::Namespaced, "/example.com/pizzas/default/a"), owner("default", "a"));
        assert_eq!(parsed(Scope::Cluster, "/example.com/pizzas/a"), owner("", "a"));
        for key in ["/example.com/pizzas/a", "/example.com/pizzas//a", "/example.com/pizzas/default/", "/x/pizzas/n/a"]
        {
            assert_eq!(parsed(Scope::Namespaced, key), None, "{key}");
        }
        assert_eq!(parsed(Scope::Cluster, "/example.com/pizzas/default/a"), None);
    }

    #[test]
    fn names_cannot_leave_their_collection() {
        let keys = pizzas(Scope::Namespaced);
        for name in ["", ".", "..", "a/b", "a%2fb"] {
            assert_eq!(keys.object("default", name).unwrap_err().code().as_u16(), 400, "{name:?}");
        }
        assert_eq!(keys.object("", "a").unwrap_err().message(), "Namespace parameter required.");
        assert_eq!(
            keys.object("default", "a/b%").unwrap_err().message(),
            r#"Name parameter invalid: "a/b%": may not contain '/';may not contain '%'"#
        );
        assert!(keys.collection("..").is_err());
    }
}
