package mongostore

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckDatabase(t *testing.T) {
	for _, name := range []string{"", "$x/ y", "a.b", "café", "admin", "local", "config", "Admin", "a\x00b", strings.Repeat("x", 64)} {
		err := CheckDatabase(name)
		require.ErrorContains(t, err, AllowedDatabase, name)
		if name != "" {
			_, err = Open(t.Context(), Options{URI: "mongodb://127.0.0.1:1", Database: name})
			require.ErrorContains(t, err, AllowedDatabase, name)
		}
	}
	for _, name := range []string{"ax", "Orders_2", "a-b", "configuration", strings.Repeat("x", 63)} {
		require.NoError(t, CheckDatabase(name), name)
	}
}

func TestConnectionStringsThatCanNeverWork(t *testing.T) {
	for uri, says := range map[string]string{
		"":                                    "scheme must be",
		"localhost:27017":                     `scheme must be "mongodb" or "mongodb+srv"`,
		"http://h":                            "scheme must be",
		"mongodb://":                          "at least 1 host",
		"mongodb://h:port/":                   "port must be an integer",
		"mongodb+srv://a,b/":                  "one and only one hostname",
		"mongodb://h/?tls=perhaps":            `invalid value for "tls": "perhaps"`,
		"mongodb://h/?readPreference=nearest": "readPreference nearest in the connection string: ax decides by what it reads",
		"mongodb://h/?readPreference=secondaryPreferred": "readPreference secondaryPreferred",
		"mongodb://h/?readPreference=bogus":              "unknown read preference bogus",
		"mongodb://h,g/?directConnection=true":           "multiple hosts",
		"mongodb://ax:hush%zz@h/":                        "invalid password",
		"mongodb://ax:hu@sh@h/":                          "unescaped @",
		"mongodb://ax:hush":                              "port must be an integer", // the host was forgotten
	} {
		err := CheckURI(uri)
		require.ErrorContains(t, err, says, uri)
		require.NotContains(t, err.Error(), "hush", "a password is not shown")
		require.NotContains(t, err.Error(), "%zz")
		_, err = Open(t.Context(), Options{URI: uri})
		require.ErrorContains(t, err, says, uri)
		require.NotContains(t, err.Error(), "hush")
	}
	for _, uri := range []string{"mongodb://h", "mongodb://ax:hush@h:1,g:2/?replicaSet=rs&readPreference=primary", "mongodb+srv://nowhere.invalid/"} {
		require.NoError(t, CheckURI(uri), uri)
	}
}
