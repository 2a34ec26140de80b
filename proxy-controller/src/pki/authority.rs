//! The CAs of one `EtcdProxy`, and the form in which a Secret keeps them.
//!
//! | file | content |
//! |---|---|
//! | `state.json` | format, owner, and for each CA what its certificate does not say |
//! | `ca-<generation>.crt`, `ca-<generation>.key` | a CA's own certificate and its key (PKCS #8), as PEM |
//! | `cross-<generation>-<issuer>.crt` | the first's key, certified by the second, as PEM |

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use rcgen::KeyPair;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use x509_parser::certificate::X509Certificate;

use super::{
    Generation, Identity, Leaf, Owner, PROBE_VALIDITY, PkiError, Stored, Wanted,
    ca::{Ca, Cross, issued, not_after, parse, single},
    leaf::{Request, Why},
};

/// The format that this version writes, and the newest that it reads.
const FORMAT: u32 = 1;

const STATE: &str = "state.json";

/// The CAs of one `EtcdProxy`.
#[derive(Clone, Debug)]
pub struct Authority {
    pub(super) owner: Owner,
    /// The CA that signs leaves.
    pub(super) signer: Ca,
    /// The CA that is going to.
    pub(super) next: Option<Ca>,
    /// Those that did, and have not expired; newest first.
    pub(super) retired: Vec<Retired>,
    /// The last generation that was made. One that expired unused leaves a gap.
    pub(super) last: Generation,
}

/// A CA that no longer signs leaves. Its key certifies its successors until it expires.
#[derive(Clone, Debug)]
pub(super) struct Retired {
    pub(super) ca: Ca,
    /// Whether every running proxy has been seen with a leaf of a newer CA.
    pub(super) replaced: bool,
}

/// `state.json`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct State {
    format: u32,
    owner: Owner,
    signer: CaState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<CaState>,
    retired: Vec<RetiredState>,
    last_generation: Generation,
}

/// Read before the rest, which a later version may have changed.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CaState {
    generation: Generation,
    rotation: i64,
    leaves_until: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    certified_by: Vec<Generation>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RetiredState {
    ca: CaState,
    replaced: bool,
}

/// The files of a Secret.
struct Files<'a>(&'a BTreeMap<String, Vec<u8>>);

// === impl Retired ===

impl Retired {
    /// Whether a certificate of this CA may still be shown by somebody.
    pub(super) fn in_bundle(&self, now: Timestamp) -> bool {
        let out_of_use = self.replaced && now >= self.ca.leaves_until;
        !out_of_use && !self.ca.expired(now)
    }
}

// === impl Authority ===

impl Authority {
    pub(super) fn create(wanted: &Wanted, now: Timestamp) -> Result<Self, PkiError> {
        let signer = Ca::create(wanted, Generation(1), wanted.rotation, now)?;
        Ok(Self { owner: wanted.owner.clone(), signer, next: None, retired: Vec::new(), last: Generation(1) })
    }

    pub(super) fn signer(&self) -> &Ca {
        &self.signer
    }

    pub(super) fn next(&self) -> Option<&Ca> {
        self.next.as_ref()
    }

    /// The stored leaf, or a new one.
    pub(super) fn leaf(
        &mut self,
        stored: Option<&Identity>,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Leaf, PkiError> {
        let why = match stored.map(|stored| request.keep(stored, &self.signer, now)) {
            None => Why::Missing,
            Some(Err(why)) => why,
            // The memory of this leaf may have been lost with an earlier state of the authority.
            Some(Ok(leaf)) => {
                self.signer.leaves_until = self.signer.leaves_until.max(leaf.expires);
                return Ok(leaf);
            }
        };
        let leaf = request.issue(&self.signer, &self.owner, why, now)?;
        self.signer.leaves_until = self.signer.leaves_until.max(leaf.expires);
        Ok(leaf)
    }

    /// The CA certificates that everybody has to trust, as PEM.
    pub(super) fn bundle(&self, now: Timestamp) -> String {
        let retired = self.retired.iter().filter(|retired| retired.in_bundle(now)).map(|retired| &retired.ca);
        self.next.iter().chain([&self.signer]).chain(retired).map(|ca| ca.pem.as_str()).collect()
    }

    /// Until when a client works that reads the present bundle and never another: as long as one of its CAs.
    pub(super) fn read_once_until(&self) -> Timestamp {
        self.next.iter().chain([&self.signer]).map(|ca| ca.not_after).max().unwrap_or(self.signer.not_after)
    }

    /// The same for a client that read the first bundle which still works.
    pub(super) fn oldest_read_once_until(&self) -> Timestamp {
        let retired = self.retired.iter().map(|retired| retired.ca.not_after);
        retired.chain([self.signer.not_after]).min().unwrap_or(self.signer.not_after)
    }

    /// The moments at which time alone changes something, past ones included.
    pub(super) fn events(&self) -> impl Iterator<Item = Timestamp> {
        let replacement = if self.next.is_some() { self.signer.overdue() } else { self.signer.due() };
        let retired = self.retired.iter().flat_map(|retired| {
            let leaves = retired.replaced.then_some(retired.ca.leaves_until);
            leaves.into_iter().chain([retired.ca.not_after])
        });
        let crosses = self.signer.crosses.iter().map(|cross| cross.not_after);
        let next = self.next.as_ref().map(|next| next.not_after);
        retired.chain(crosses).chain(next).chain([replacement])
    }

    /// A short-lived client certificate of the *next* CA, of the common name `common_name`, without cross certificates: only
    /// a proxy that uses the new bundle accepts it. For [`crate::probe`]; never for keeps. `None` unless a rotation waits for it.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn probe_identity(&self, common_name: &str, now: Timestamp) -> Result<Option<Identity>, PkiError> {
        let Some(next) = &self.next else { return Ok(None) };
        let request = Request::client(common_name, PROBE_VALIDITY);
        Ok(Some(request.issue_alone(next, &self.owner, Why::Missing, now)?.identity))
    }

    /// Which of the CAs issued `leaf`.
    pub fn issuer_of(&self, leaf: &CertificateDer<'_>) -> Option<Generation> {
        let certificate = parse(leaf)?;
        let retired = self.retired.iter().map(|retired| &retired.ca);
        let mut all = self.next.iter().chain([&self.signer]).chain(retired);
        all.find(|ca| ca.signed(&certificate)).map(|ca| ca.generation)
    }

    /// The generation of the CA that signs.
    pub fn generation(&self) -> Generation {
        self.signer.generation
    }

    /// The files of the Secret that keeps it. Equal states give equal files.
    pub fn encode(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        let retired = self.retired.iter().map(|retired| &retired.ca);
        for ca in self.next.iter().chain([&self.signer]).chain(retired) {
            files.insert(certificate_file(ca.generation), ca.pem.clone().into_bytes());
            files.insert(key_file(ca.generation), ca.key.serialize_pem().into_bytes());
            for cross in &ca.crosses {
                files.insert(cross_file(ca.generation, cross.issuer), cross.pem.clone().into_bytes());
            }
        }
        let state = State {
            format: FORMAT,
            owner: self.owner.clone(),
            signer: CaState::of(&self.signer),
            next: self.next.as_ref().map(CaState::of),
            retired: self
                .retired
                .iter()
                .map(|retired| RetiredState { ca: CaState::of(&retired.ca), replaced: retired.replaced })
                .collect(),
            last_generation: self.last,
        };
        // Strings, numbers and lists: it cannot fail.
        files.insert(STATE.to_owned(), serde_json::to_vec_pretty(&state).unwrap_or_default());
        files
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// When anything is missing, damaged, of a later version, or of another object. Never is a new CA made instead: that would
    /// lock out every client.
    pub fn decode(files: &BTreeMap<String, Vec<u8>>, owner: &Owner) -> Result<Self, PkiError> {
        let files = Files(files);
        let state = files.state()?;
        if state.owner != *owner {
            return Err(PkiError::Foreign { found: Box::new(state.owner), wanted: Box::new(owner.clone()) });
        }
        let mut retired = Vec::with_capacity(state.retired.len());
        for one in state.retired {
            retired.push(Retired { ca: files.ca(owner, one.ca)?, replaced: one.replaced });
        }
        let signer = files.ca(owner, state.signer)?;
        let next = state.next.map(|next| files.ca(owner, next)).transpose()?;
        let authority = Self { owner: state.owner, signer, next, retired, last: state.last_generation };
        authority.check()?;
        Ok(authority)
    }

    /// What holds between the CAs: newest first, and cross certificates by those that are there.
    fn check(&self) -> Result<(), PkiError> {
        let retired = self.retired.iter().map(|retired| &retired.ca);
        let all: Vec<&Ca> = self.next.iter().chain([&self.signer]).chain(retired).collect();
        let newest = all.first().is_some_and(|newest| newest.generation <= self.last);
        if !newest || !all.is_sorted_by(|newer, older| newer.generation > older.generation) {
            return Err(damaged(STATE, "the CAs are not in the order of their generations"));
        }
        for ca in &all {
            for cross in &ca.crosses {
                let issuer = all.iter().find(|older| older.generation == cross.issuer);
                let file = cross_file(ca.generation, cross.issuer);
                let der = single(&cross.pem).ok_or_else(|| damaged(&file, "not one certificate in PEM form"))?;
                let certificate = parse(&der).ok_or_else(|| damaged(&file, "not a certificate"))?;
                if !issuer.is_some_and(|issuer| issuer.signed(&certificate)) {
                    return Err(damaged(&file, "the CA that it names as issuer did not sign it"));
                }
            }
        }
        Ok(())
    }
}

// === impl Stored ===

impl Stored {
    /// Takes `tls.crt` and `tls.key` of a Secret; `None` if either is not there or not text, which is as good as nothing.
    pub fn identity(files: &BTreeMap<String, Vec<u8>>) -> Option<Identity> {
        let text = |name: &str| Some(str::from_utf8(files.get(name)?).ok()?.to_owned());
        Some(Identity { chain: text("tls.crt")?, key: text("tls.key")? })
    }
}

// === impl CaState ===

impl CaState {
    fn of(ca: &Ca) -> Self {
        Self {
            generation: ca.generation,
            rotation: ca.rotation,
            leaves_until: ca.leaves_until,
            certified_by: ca.crosses.iter().map(|cross| cross.issuer).collect(),
        }
    }
}

// === impl Files ===

impl Files<'_> {
    fn text(&self, file: &str) -> Result<&str, PkiError> {
        let bytes = self.0.get(file).ok_or_else(|| PkiError::Missing { file: file.to_owned() })?;
        str::from_utf8(bytes).map_err(|_| damaged(file, "not text"))
    }

    fn state(&self) -> Result<State, PkiError> {
        let text = self.text(STATE)?;
        let unreadable = |error: serde_json::Error| damaged(STATE, &error.to_string());
        let Version { format } = serde_json::from_str(text).map_err(unreadable)?;
        if format != FORMAT {
            return Err(PkiError::Format { found: format, known: FORMAT });
        }
        serde_json::from_str(text).map_err(unreadable)
    }

    fn ca(&self, owner: &Owner, state: CaState) -> Result<Ca, PkiError> {
        let file = certificate_file(state.generation);
        let pem = self.text(&file)?;
        let der = single(pem).ok_or_else(|| damaged(&file, "not one certificate in PEM form"))?;
        let certificate = parse(&der).ok_or_else(|| damaged(&file, "not a certificate"))?;
        let key_file = key_file(state.generation);
        // What the library says of a bad key is not repeated: it is about a key.
        let key = KeyPair::from_pem(self.text(&key_file)?).map_err(|_| damaged(&key_file, "not a private key"))?;
        if key.serialize_pem() != self.text(&key_file)? {
            return Err(damaged(&key_file, "not a private key as it was written"));
        }
        let read = (|| Some((issued(&certificate)?, not_after(&certificate)?)))();
        let (issued, not_after) = read.ok_or_else(|| damaged(&file, "its dates are out of range"))?;
        let ca = Ca {
            generation: state.generation,
            rotation: state.rotation,
            issued,
            not_after,
            leaves_until: state.leaves_until,
            pem: pem.to_owned(),
            key: Arc::new(key),
            crosses: state.certified_by.iter().map(|by| self.cross(state.generation, *by)).collect::<Result<_, _>>()?,
        };
        if ca.key.public_key_raw() != &*certificate.public_key().subject_public_key.data {
            return Err(damaged(&key_file, &format!("it does not belong to {file}")));
        }
        if !ca.signed(&certificate) || !certificate.is_ca() || !names(&certificate, owner, state.generation) {
            return Err(damaged(&file, "it is not the self-signed certificate of this CA"));
        }
        Ok(ca)
    }

    fn cross(&self, generation: Generation, issuer: Generation) -> Result<Cross, PkiError> {
        let file = cross_file(generation, issuer);
        let pem = self.text(&file)?;
        let der = single(pem).ok_or_else(|| damaged(&file, "not one certificate in PEM form"))?;
        let not_after = parse(&der).as_ref().and_then(not_after).ok_or_else(|| damaged(&file, "not a certificate"))?;
        Ok(Cross { issuer, not_after, pem: pem.to_owned() })
    }
}

fn names(certificate: &X509Certificate<'_>, owner: &Owner, generation: Generation) -> bool {
    let subject = certificate.subject();
    let common_name = subject.iter_common_name().next().and_then(|name| name.as_str().ok());
    let uid = subject.iter_organization().next().and_then(|name| name.as_str().ok());
    common_name == Some(&Ca::common_name(owner, generation)) && uid == Some(&owner.uid)
}

fn certificate_file(generation: Generation) -> String {
    format!("ca-{generation}.crt")
}

fn key_file(generation: Generation) -> String {
    format!("ca-{generation}.key")
}

fn cross_file(generation: Generation, issuer: Generation) -> String {
    format!("cross-{generation}-{issuer}.crt")
}

fn damaged(file: &str, what: &str) -> PkiError {
    PkiError::Damaged { file: file.to_owned(), what: what.to_owned() }
}
