//! `Debug` of the messages that carry a secret. A secret is never shown, only whether it is
//! there: messages are logged as they are when something goes wrong.

use std::fmt::{Debug, Formatter, Result};

use crate::{
    authpb::User,
    etcdserverpb::{AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest, AuthenticateResponse},
};

struct Secret<'a>(&'a [u8]);

impl Debug for Secret<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(if self.0.is_empty() { "<empty>" } else { "<redacted>" })
    }
}

impl Debug for User {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .field("password", &Secret(&self.password))
            .field("roles", &self.roles)
            .field("options", &self.options)
            .finish()
    }
}

impl Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("AuthenticateRequest")
            .field("name", &self.name)
            .field("password", &Secret(self.password.as_bytes()))
            .finish()
    }
}

impl Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("AuthenticateResponse")
            .field("header", &self.header)
            .field("token", &Secret(self.token.as_bytes()))
            .finish()
    }
}

impl Debug for AuthUserAddRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("AuthUserAddRequest")
            .field("name", &self.name)
            .field("password", &Secret(self.password.as_bytes()))
            .field("options", &self.options)
            .field("hashed_password", &Secret(self.hashed_password.as_bytes()))
            .finish()
    }
}

impl Debug for AuthUserChangePasswordRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("AuthUserChangePasswordRequest")
            .field("name", &self.name)
            .field("password", &Secret(self.password.as_bytes()))
            .field("hashed_password", &Secret(self.hashed_password.as_bytes()))
            .finish()
    }
}
