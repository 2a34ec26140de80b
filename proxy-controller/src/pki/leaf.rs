//! Leaves: what one looks like, and whether a stored one will do.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use jiff::Timestamp;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use x509_parser::{certificate::X509Certificate, extensions::GeneralName};

use super::{
    Leaf, Owner, PkiError, Wanted, after,
    ca::{Ca, crypto, issued, not_after, parse, single, validity, whole},
    part,
};

/// A certificate with its chain and key.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The leaf and then the cross certificates, as PEM.
    pub chain: String,
    /// The private key, as PEM (PKCS #8). Not for logs.
    pub key: String,
}

/// What a leaf is for. Each is for one side only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    Server,
    Client,
}

/// What a leaf has to say.
#[derive(Clone, Debug)]
pub(super) struct Request<'a> {
    pub(super) usage: Usage,
    pub(super) common_name: &'a str,
    pub(super) dns_names: Option<&'a BTreeSet<String>>,
    pub(super) ip_addresses: Option<&'a BTreeSet<IpAddr>>,
    pub(super) validity: Duration,
}

/// Why a leaf is issued anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// There was none.
    Missing,
    /// What is stored is not a certificate with its key.
    Damaged,
    /// Certificate and key do not belong together.
    Key,
    /// It is of another CA than the one that signs now.
    Signer,
    /// The cross certificates that follow it are not those that it needs now.
    Chain,
    /// It is not for this side of a connection.
    Usage,
    /// Its names are not the wanted ones.
    Names,
    /// Its life is not as long as wanted.
    Validity,
    /// Two thirds of its life are over.
    Due,
}

// === impl Request ===

impl<'a> Request<'a> {
    /// The proxies' certificate. Nobody looks at its common name: the names are the alternative ones (RFC 6125).
    pub(super) fn serving(wanted: &'a Wanted) -> Self {
        Self {
            usage: Usage::Server,
            common_name: "etcd-proxy",
            dns_names: Some(&wanted.dns_names),
            ip_addresses: Some(&wanted.ip_addresses),
            validity: wanted.validity,
        }
    }

    /// A client's certificate: its common name says who it is.
    pub(super) fn client(common_name: &'a str, validity: Duration) -> Self {
        Self { usage: Usage::Client, common_name, dns_names: None, ip_addresses: None, validity }
    }

    fn dns_names(&self) -> impl Iterator<Item = &'a str> {
        self.dns_names.into_iter().flatten().map(String::as_str)
    }

    fn ip_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ip_addresses.into_iter().flatten().copied()
    }

    /// When a leaf expires that `ca` issues: never after its signer.
    fn not_after(&self, ca: &Ca, issued: Timestamp) -> Result<Timestamp, PkiError> {
        Ok(after(issued, self.validity)?.min(ca.not_after))
    }

    fn names_are_of(&self, certificate: &X509Certificate<'_>) -> bool {
        let mut common_names = certificate.subject().iter_common_name();
        let common_name = common_names.next().and_then(|name| name.as_str().ok());
        if common_name != Some(self.common_name) || common_names.next().is_some() {
            return false;
        }
        let Ok(extension) = certificate.subject_alternative_name() else { return false };
        let mut dns_names = BTreeSet::new();
        let mut ip_addresses = BTreeSet::new();
        for name in extension.iter().flat_map(|extension| &extension.value.general_names) {
            match name {
                GeneralName::DNSName(name) => dns_names.insert(*name),
                GeneralName::IPAddress(octets) => match address(octets) {
                    Some(address) => ip_addresses.insert(address),
                    None => return false,
                },
                _ => return false,
            };
        }
        dns_names.into_iter().eq(self.dns_names()) && ip_addresses.into_iter().eq(self.ip_addresses())
    }

    fn usage_is_of(&self, certificate: &X509Certificate<'_>) -> bool {
        let Ok(Some(extension)) = certificate.extended_key_usage() else { return false };
        let usage = extension.value;
        let (this, other) = match self.usage {
            Usage::Server => (usage.server_auth, usage.client_auth),
            Usage::Client => (usage.client_auth, usage.server_auth),
        };
        this && !other && !usage.any && !certificate.is_ca()
    }

    /// Issues a leaf, followed by the certificates that make `ca` known to those who know only older CAs.
    pub(super) fn issue(&self, ca: &Ca, owner: &Owner, why: Why, now: Timestamp) -> Result<Leaf, PkiError> {
        let mut leaf = self.issue_alone(ca, owner, why, now)?;
        leaf.identity.chain.push_str(&tail(ca));
        Ok(leaf)
    }

    /// Issues a leaf that only those can verify who know `ca` itself.
    pub(super) fn issue_alone(&self, ca: &Ca, owner: &Owner, why: Why, now: Timestamp) -> Result<Leaf, PkiError> {
        let issued = whole(now)?;
        let expires = self.not_after(ca, issued)?;
        let mut params = validity(CertificateParams::default(), issued, expires)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, self.common_name);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match self.usage {
            Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        for name in self.dns_names() {
            let name = name.try_into().map_err(|_| PkiError::DnsName { name: name.to_owned() })?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        params.subject_alt_names.extend(self.ip_addresses().map(SanType::IpAddress));
        let key = KeyPair::generate().map_err(crypto)?;
        let chain = params.signed_by(&key, &ca.issuer(owner)?).map_err(crypto)?.pem();
        let identity = Identity { chain, key: key.serialize_pem() };
        Ok(Leaf { identity, new: Some(why), expires, renews: renews(ca, issued, expires) })
    }

    /// Takes the stored leaf if it is what [`Self::issue`] would make, and has a third of its life left.
    pub(super) fn keep(&self, stored: &Identity, ca: &Ca, now: Timestamp) -> Result<Leaf, Why> {
        let (leaf, rest) = split(&stored.chain).ok_or(Why::Damaged)?;
        let der = single(leaf).ok_or(Why::Damaged)?;
        let certificate = parse(&der).ok_or(Why::Damaged)?;
        let key = KeyPair::from_pem(&stored.key).map_err(|_| Why::Damaged)?;
        if key.serialize_pem() != stored.key {
            return Err(Why::Damaged);
        }
        if key.public_key_raw() != &*certificate.public_key().subject_public_key.data {
            return Err(Why::Key);
        }
        if !ca.signed(&certificate) {
            return Err(Why::Signer);
        }
        if rest != tail(ca) {
            return Err(Why::Chain);
        }
        if !self.usage_is_of(&certificate) {
            return Err(Why::Usage);
        }
        if !self.names_are_of(&certificate) {
            return Err(Why::Names);
        }
        let issued = issued(&certificate).ok_or(Why::Damaged)?;
        let expires = not_after(&certificate).ok_or(Why::Damaged)?;
        if self.not_after(ca, issued).ok() != Some(expires) {
            return Err(Why::Validity);
        }
        let renews = renews(ca, issued, expires);
        if renews.is_some_and(|moment| now >= moment) {
            return Err(Why::Due);
        }
        Ok(Leaf { identity: stored.clone(), new: None, expires, renews })
    }
}

// === impl Identity ===

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("chain", &self.chain).finish_non_exhaustive()
    }
}

// === impl Why ===

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "there was none",
            Self::Damaged => "the stored one was damaged",
            Self::Key => "the stored key did not belong to the stored certificate",
            Self::Signer => "the CA that signs is another one",
            Self::Chain => "the cross certificates that go with it are others",
            Self::Usage => "the stored one was for the other side of a connection",
            Self::Names => "its names are to be others",
            Self::Validity => "its validity is to be another",
            Self::Due => "two thirds of its life are over",
        })
    }
}

/// The certificates of `ca`'s key by older CAs, as PEM.
fn tail(ca: &Ca) -> String {
    ca.crosses.iter().map(|cross| cross.pem.as_str()).collect()
}

/// Splits a chain after the first certificate.
fn split(chain: &str) -> Option<(&str, &str)> {
    const END: &str = "-----END CERTIFICATE-----\n";
    let end = chain.find(END)?.checked_add(END.len())?;
    chain.split_at_checked(end)
}

/// Two thirds of a life; never for a leaf that lives as long as its signer, since a new one would not live longer.
fn renews(ca: &Ca, issued: Timestamp, expires: Timestamp) -> Option<Timestamp> {
    (expires < ca.not_after).then(|| part(issued, expires, 2, 3))
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(octets) {
        return Some(Ipv4Addr::from(octets).into());
    }
    <[u8; 16]>::try_from(octets).ok().map(|octets| Ipv6Addr::from(octets).into())
}
