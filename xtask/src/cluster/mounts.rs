//! Secrets and ConfigMaps as files, delivered and kept right as the kubelet does for the volumes of a pod.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Kubectl,
    atomic_writer::{self, File, Payload},
    follow::{Change, Follower},
};
use crate::site::Site;

/// What a volume holds: the keys of Secrets and ConfigMaps of one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Projection {
    /// The namespace of all its sources.
    pub namespace: String,
    /// What it is made of; of two files at one path the later counts.
    pub sources: Vec<Source>,
    /// The permission bits of files that have none of their own.
    pub mode: u32,
}

/// One object in a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Which keys; all of them, each as a file of its name, where there are none.
    pub items: Option<Vec<Item>>,
    /// Whether the object, and each of the keys, may be missing.
    pub optional: bool,
}

/// One key of an object in a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The key.
    pub key: String,
    /// The path in the volume.
    pub path: String,
    /// The permission bits, if they differ from the volume's.
    pub mode: Option<u32>,
}

/// What can be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is the kind of its name")]
pub enum Kind {
    Secret,
    ConfigMap,
}

/// Volumes that follow their objects. Dropping it ends the delivery and leaves the files.
pub struct Mounts {
    // Before the state's thread, so that nothing changes the state while it ends.
    followers: Vec<Follower>,
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    objects: Objects,
    mounts: BTreeMap<PathBuf, Mount>,
    /// How long a change takes from the API server to the file.
    delay: Duration,
    /// No file changes meanwhile.
    held: bool,
    ended: bool,
}

type Objects = HashMap<(Kind, String, String), Object>;

/// What is known of a Secret or ConfigMap.
#[derive(PartialEq, Eq)]
struct Object {
    version: String,
    data: BTreeMap<String, Vec<u8>>,
}

struct Mount {
    projection: Projection,
    /// When to look at it again; none while it is as it should be.
    due: Option<Instant>,
    /// What came of the last look; none before the first.
    outcome: Option<Result<(), String>>,
    /// Whether a whole state was ever delivered.
    delivered: bool,
}

// === impl Projection ===

impl Projection {
    /// One whole Secret.
    pub fn secret(namespace: &str, name: &str) -> Self {
        Self::whole(Kind::Secret, namespace, name)
    }

    /// One whole ConfigMap.
    pub fn config_map(namespace: &str, name: &str) -> Self {
        Self::whole(Kind::ConfigMap, namespace, name)
    }

    fn whole(kind: Kind, namespace: &str, name: &str) -> Self {
        let source = Source { kind, name: name.to_owned(), items: None, optional: false };
        Self { namespace: namespace.to_owned(), sources: vec![source], mode: 0o644 }
    }

    /// The files, as the kubelet makes them of the objects (pkg/volume/{secret,configmap,projected}).
    fn payload(&self, objects: &Objects) -> Result<Payload> {
        let mut payload = Payload::new();
        for Source { kind, name, items, optional } in &self.sources {
            let what = format!("{kind:?} {}/{name}", self.namespace);
            let Some(object) = objects.get(&(*kind, self.namespace.clone(), name.clone())) else {
                if *optional {
                    continue;
                }
                bail!("there is no {what}");
            };
            let Some(items) = items else {
                let files = object.data.iter();
                payload.extend(files.map(|(key, data)| (key.clone(), File { data: data.clone(), mode: self.mode })));
                continue;
            };
            for Item { key, path, mode } in items {
                match object.data.get(key) {
                    Some(data) => {
                        let file = File { data: data.clone(), mode: mode.unwrap_or(self.mode) };
                        payload.insert(path.clone(), file);
                    }
                    None if *optional => {}
                    None => bail!("{what} has no key {key:?}"),
                }
            }
        }
        Ok(payload)
    }

    fn concerns(&self, (kind, namespace, name): &(Kind, String, String)) -> bool {
        *namespace == self.namespace && self.sources.iter().any(|source| source.kind == *kind && source.name == *name)
    }
}

// === impl Mounts ===

impl Mounts {
    /// Begins to follow all Secrets and ConfigMaps, as the user of `kubectl`; volumes are [mounted](Self::mount) later.
    /// A change is delivered `delay` after it was heard of: the kubelet takes up to about a minute and a half.
    pub fn start(site: &Site, kubectl: &Kubectl, delay: Duration) -> Self {
        let state = State { objects: HashMap::new(), mounts: BTreeMap::new(), delay, held: false, ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let follow = |kind: Kind, path: &str| {
            let shared = Arc::clone(&shared);
            Follower::start(site, kubectl, "mounts", path, move |change| shared.hear(kind, change))
        };
        let followers = vec![follow(Kind::Secret, "/api/v1/secrets"), follow(Kind::ConfigMap, "/api/v1/configmaps")];
        let writer = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.write())
        };
        Self { followers, shared, writer: Some(writer) }
    }

    /// Has `folder`, which is made, hold a volume from now on. [`Mounts::wait`] waits until it does.
    ///
    /// # Errors
    /// When the folder cannot be made, or holds another volume.
    pub fn mount(&self, projection: Projection, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let mut state = self.shared.state.lock();
        if let Some(mount) = state.mounts.get(folder) {
            if mount.projection != projection {
                bail!("{} holds another volume already", folder.display());
            }
            return Ok(());
        }
        let mount = Mount { projection, due: Some(Instant::now()), outcome: None, delivered: false };
        state.mounts.insert(folder.to_path_buf(), mount);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Lets a folder's files be as they are from now on.
    pub fn unmount(&self, folder: &Path) {
        self.shared.state.lock().mounts.remove(folder);
    }

    /// Waits until a whole volume has been delivered into `folder`: a container does not start before that.
    ///
    /// # Errors
    /// When it was not within `limit`: what is missing.
    pub fn wait(&self, folder: &Path, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.state.lock();
        loop {
            let mount =
                state.mounts.get(folder).with_context(|| format!("no volume is mounted at {}", folder.display()))?;
            if mount.delivered {
                return Ok(());
            }
            let why = mount.outcome.clone().and_then(Result::err);
            if self.shared.changed.wait_until(&mut state, deadline).timed_out() {
                bail!(
                    "{}: not delivered within {} s: {}",
                    folder.display(),
                    limit.as_secs(),
                    why.unwrap_or_else(|| "nothing is known of its objects yet".to_owned())
                );
            }
        }
    }

    /// Why the last delivery into `folder` did not come about, if it did not; the files are then as they were.
    pub fn problem(&self, folder: &Path) -> Option<String> {
        self.shared.state.lock().mounts.get(folder)?.outcome.clone()?.err()
    }

    /// Whether a change was heard of that has not been delivered into `folder` yet.
    pub fn pending(&self, folder: &Path) -> bool {
        self.shared.state.lock().mounts.get(folder).is_some_and(|mount| mount.due.is_some())
    }

    /// How long changes that are heard of from now on take to the file.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.state.lock().delay = delay;
    }

    /// Holds all deliveries back, as a kubelet that is cut off does, or lets them go on.
    pub fn hold(&self, held: bool) {
        self.shared.state.lock().held = held;
        self.shared.changed.notify_all();
    }

    /// Every volume and its folder.
    pub fn all(&self) -> Vec<(PathBuf, Projection)> {
        let state = self.shared.state.lock();
        state.mounts.iter().map(|(folder, mount)| (folder.clone(), mount.projection.clone())).collect()
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        self.followers.clear();
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_all();
        // A thread that panicked has said so.
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

// === impl Shared ===

impl Shared {
    fn hear(&self, kind: Kind, change: Change) {
        let mut state = self.state.lock();
        state.hear(kind, change, Instant::now());
        self.changed.notify_all();
    }

    /// Delivers what is due, until the end.
    fn write(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            let now = Instant::now();
            match state.next() {
                Some((folder, due)) if due <= now => self.deliver(&mut state, &folder),
                Some((_, due)) => {
                    self.changed.wait_until(&mut state, due);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn deliver(&self, state: &mut MutexGuard<'_, State>, folder: &Path) {
        let Some(mount) = state.mounts.get(folder) else { return };
        let payload = mount.projection.payload(&state.objects);
        if let Some(mount) = state.mounts.get_mut(folder) {
            // Whatever is heard while the files are written makes it due again.
            mount.due = None;
        }
        let written =
            MutexGuard::unlocked(state, || payload.and_then(|payload| atomic_writer::write(folder, &payload)));
        if let Some(mount) = state.mounts.get_mut(folder) {
            mount.delivered |= written.is_ok();
            mount.outcome = Some(written.map(drop).map_err(|error| format!("{error:#}")));
        }
        self.changed.notify_all();
    }
}

// === impl State ===

impl State {
    fn hear(&mut self, kind: Kind, change: Change, now: Instant) {
        match change {
            Change::Put(object) => {
                if let Some((name, object)) = Object::read(kind, &object)
                    && self.objects.get(&name) != Some(&object)
                {
                    self.objects.insert(name.clone(), object);
                    self.touch(&name, now);
                }
            }
            Change::Gone(object) => {
                if let Some((name, _)) = Object::read(kind, &object) {
                    self.objects.remove(&name);
                    self.touch(&name, now);
                }
            }
            Change::All(objects) => {
                let mut all: Objects = objects.iter().filter_map(|object| Object::read(kind, object)).collect();
                let known: Vec<_> = self.objects.keys().filter(|(known, ..)| *known == kind).cloned().collect();
                for name in known {
                    if all.get(&name) == self.objects.get(&name) {
                        all.remove(&name);
                    } else if !all.contains_key(&name) {
                        self.objects.remove(&name);
                        self.touch(&name, now);
                    }
                }
                for (name, object) in all {
                    self.objects.insert(name.clone(), object);
                    self.touch(&name, now);
                }
            }
        }
    }

    /// Makes the volumes that an object concerns due: a pod that waits for its start is served at once.
    fn touch(&mut self, name: &(Kind, String, String), now: Instant) {
        let delay = self.delay;
        for mount in self.mounts.values_mut().filter(|mount| mount.projection.concerns(name)) {
            let due = if mount.delivered { now + delay } else { now };
            mount.due = Some(mount.due.map_or(due, |earlier| earlier.min(due)));
        }
    }

    fn next(&self) -> Option<(PathBuf, Instant)> {
        if self.held {
            return None;
        }
        let due = self.mounts.iter().filter_map(|(folder, mount)| Some((folder, mount.due?)));
        due.min_by_key(|(_, due)| *due).map(|(folder, due)| (folder.clone(), due))
    }
}

// === impl Object ===

impl Object {
    fn read(kind: Kind, object: &Value) -> Option<((Kind, String, String), Self)> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let (namespace, name) = (text("/metadata/namespace")?, text("/metadata/name")?);
        let encoded = |field: &str| object.get(field).and_then(Value::as_object).into_iter().flatten();
        let decode = |(key, value): (&String, &Value)| Some((key.clone(), STANDARD.decode(value.as_str()?).ok()?));
        let plain = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.as_bytes().to_vec()));
        let data = match kind {
            Kind::Secret => encoded("data").filter_map(decode).collect(),
            Kind::ConfigMap => {
                encoded("data").filter_map(plain).chain(encoded("binaryData").filter_map(decode)).collect()
            }
        };
        let version = text("/metadata/resourceVersion").unwrap_or_default();
        Some(((kind, namespace, name), Self { version, data }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(name: &str, version: &str, value: &str) -> Value {
        json!({
            "metadata": {"namespace": "ns", "name": name, "resourceVersion": version},
            "data": {"tls.crt": STANDARD.encode(value), "tls.key": STANDARD.encode("key")},
        })
    }

    fn state(projection: Projection) -> State {
        let mount = Mount { projection, due: None, outcome: None, delivered: true };
        State {
            objects: HashMap::new(),
            mounts: [(PathBuf::from("/volume"), mount)].into(),
            delay: Duration::from_secs(60),
            held: false,
            ended: false,
        }
    }

    #[test]
    fn a_change_is_due_after_the_delay_and_a_first_delivery_at_once() {
        let now = Instant::now();
        let mut state = state(Projection::secret("ns", "serving"));
        state.hear(Kind::Secret, Change::Put(secret("other", "1", "x")), now);
        state.hear(Kind::ConfigMap, Change::Put(secret("serving", "1", "x")), now);
        assert!(state.next().is_none(), "neither is in the volume");
        state.hear(Kind::Secret, Change::Put(secret("serving", "1", "one")), now);
        assert_eq!(state.next().unwrap().1, now + Duration::from_secs(60));
        // A second change while the first is on its way does not put it off.
        state.hear(Kind::Secret, Change::Put(secret("serving", "2", "two")), now + Duration::from_secs(30));
        assert_eq!(state.next().unwrap().1, now + Duration::from_secs(60));
        state.held = true;
        assert!(state.next().is_none());
        state.held = false;
        state.mounts.values_mut().for_each(|mount| mount.delivered = false);
        state.hear(Kind::Secret, Change::Put(secret("serving", "3", "three")), now);
        assert_eq!(state.next().unwrap().1, now);
    }

    #[test]
    fn a_new_state_concerns_only_what_it_changes() {
        let now = Instant::now();
        let mut state = state(Projection::secret("ns", "serving"));
        state.hear(Kind::Secret, Change::All(vec![secret("serving", "1", "one"), secret("other", "1", "x")]), now);
        assert!(state.mounts.values_mut().all(|mount| mount.due.take().is_some()));
        state.hear(Kind::Secret, Change::All(vec![secret("serving", "1", "one")]), now);
        assert!(state.next().is_none(), "it is as it was");
        assert_eq!(state.objects.len(), 1, "the other is gone");
        state.hear(Kind::ConfigMap, Change::All(Vec::new()), now);
        assert_eq!(state.objects.len(), 1, "another kind's state says nothing of Secrets");
        state.hear(Kind::Secret, Change::All(Vec::new()), now);
        assert!(state.next().is_some() && state.objects.is_empty());
    }

    #[test]
    fn keys_become_files() {
        let mut objects = Objects::new();
        objects.extend(Object::read(Kind::Secret, &secret("serving", "1", "one")));
        let config = json!({
            "metadata": {"namespace": "ns", "name": "ca", "resourceVersion": "1"},
            "data": {"ca.crt": "the ca"}, "binaryData": {"der": STANDARD.encode([1, 2])},
        });
        objects.extend(Object::read(Kind::ConfigMap, &config));
        let whole = Projection::secret("ns", "serving").payload(&objects).unwrap();
        assert_eq!(whole.keys().collect::<Vec<_>>(), ["tls.crt", "tls.key"]);
        assert!(whole["tls.crt"] == File { data: b"one".to_vec(), mode: 0o644 });

        let item = |key: &str| Item { key: key.to_owned(), path: format!("sub/{key}"), mode: Some(0o400) };
        let source = |kind, name: &str, items, optional| Source { kind, name: name.to_owned(), items, optional };
        let projection = |sources| Projection { namespace: "ns".to_owned(), sources, mode: 0o640 };
        let both = projection(vec![
            source(Kind::Secret, "serving", Some(vec![item("tls.key")]), false),
            source(Kind::ConfigMap, "ca", None, false),
        ]);
        let files = both.payload(&objects).unwrap();
        assert_eq!(files.keys().collect::<Vec<_>>(), ["ca.crt", "der", "sub/tls.key"]);
        assert!(files["sub/tls.key"].mode == 0o400 && files["der"].mode == 0o640 && files["der"].data == [1, 2]);

        for (source, missing) in [
            (source(Kind::Secret, "none", None, false), "no Secret ns/none"),
            (source(Kind::ConfigMap, "ca", Some(vec![item("x")]), false), "ConfigMap ns/ca has no key \"x\""),
        ] {
            let error = projection(vec![source.clone()]).payload(&objects).err().unwrap().to_string();
            assert!(error.contains(missing), "{error}");
            assert!(projection(vec![Source { optional: true, ..source }]).payload(&objects).unwrap().is_empty());
        }
    }
}
